import json
import logging
import re

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from .broker import QUEUE, broker

ORDER_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
logger = logging.getLogger(__name__)


@csrf_exempt
@require_POST
def accept(request: HttpRequest) -> HttpResponse:
    try:
        order = json.loads(request.body)
    except ValueError:
        order = None
    match order:
        case {"id": str(number)} if ORDER_ID.fullmatch(number):
            # Returns when the broker has confirmed: from then on the broker is responsible for the message.
            body = json.dumps({"id": number})
            broker().publish(QUEUE, body, message_id=number, content_type="application/json", timeout="10s")
            return JsonResponse({"accepted": number}, status=202)
    return JsonResponse({"error": "an order needs an id"}, status=400)


@require_GET
def health(request: HttpRequest) -> HttpResponse:
    """Whether it is ready. For liveness ask something else."""
    if trouble := broker().trouble():
        logger.warning("not ready: %s", trouble)
        return HttpResponse("not ready", status=503)
    return HttpResponse("fine")
