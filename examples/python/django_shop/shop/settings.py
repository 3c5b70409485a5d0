"""Settings of the example: one app, one database, and the middleware that answers 503 when the broker is down."""

import os
from pathlib import Path

SECRET_KEY = os.environ.get("SECRET_KEY", "only-for-this-example")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["orders"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "orders.broker.BrokerUnavailableMiddleware"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", Path(__file__).resolve().parents[1] / "shop.sqlite3"),
    }
}
# Shows why attempts fail.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"retryrmq": {"handlers": ["console"], "level": "INFO"}},
}
TIME_ZONE = "UTC"
USE_TZ = True
