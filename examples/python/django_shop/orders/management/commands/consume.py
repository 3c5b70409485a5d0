from typing import Any

from django.core.management.base import BaseCommand

from ...consumers import consumers


class Command(BaseCommand):
    help = "Handles orders until SIGTERM, then drains."

    def handle(self, **options: Any) -> None:
        consumers.run()
