"""POST /orders/ and GET /health/."""

from django.urls import path
from orders import views

urlpatterns = [path("orders/", views.accept), path("health/", views.health)]
