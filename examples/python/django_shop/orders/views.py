import json
import logging

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from .broker import QUEUE, broker

logger = logging.getLogger(__name__)


@csrf_exempt
@require_POST
def accept(request: HttpRequest) -> HttpResponse:
    try:
        order = str(json.loads(request.body)["id"])
    except (ValueError, KeyError, TypeError):
        return JsonResponse({"error": "an order needs an id"}, status=400)
    # Returns when the broker has confirmed: from then on the broker is responsible for the message.
    broker().publish(QUEUE, json.dumps({"id": order}), message_id=order, content_type="application/json")
    return JsonResponse({"accepted": order}, status=202)


@require_GET
def health(request: HttpRequest) -> HttpResponse:
    """Whether it is ready. For liveness ask something else."""
    if trouble := broker().trouble():
        logger.warning("not ready: %s", trouble)
        return HttpResponse("not ready", status=503)
    return HttpResponse("fine")
