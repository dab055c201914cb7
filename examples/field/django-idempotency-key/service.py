"""django-idempotency-key as its README sets it up; with SETTINGS=best, a retry gets the status of the first answer."""

import json
import os
import threading
import time

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.urls import path
from waitress import serve

settings.configure(
    SECRET_KEY="not secret",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[],
    MIDDLEWARE=["idempotency_key.middleware.IdempotencyKeyMiddleware"],
    IDEMPOTENCY_KEY={"CONFLICT_STATUS_CODE": None} if os.environ.get("SETTINGS") == "best" else {},
)
django.setup()

payments = 0
lock = threading.Lock()


def pay(request):
    global payments
    if "HTTP_AUTHORIZATION" not in request.META:
        return HttpResponse(status=401)
    amount = json.loads(request.body)["amount"]
    time.sleep(0.1)
    with lock:
        payments += 1
        return JsonResponse({"id": payments, "amount": amount}, status=201)


def count(request):
    return JsonResponse({"count": payments})


urlpatterns = [path("payments", pay), path("count", count)]

if __name__ == "__main__":
    serve(get_wsgi_application(), host="127.0.0.1", port=int(os.environ["PORT"]), threads=16)
