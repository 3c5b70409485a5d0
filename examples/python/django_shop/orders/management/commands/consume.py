from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...consumers import consumers
from ...probes import serve_probes


class Command(BaseCommand):
    help = "Handles orders until SIGTERM, then drains."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--probes", type=int, default=9419, help="the port of /healthz, /readyz and /metrics")

    def handle(self, **options: Any) -> None:
        serve_probes(consumers, options["probes"])
        consumers.run()
