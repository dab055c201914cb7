"""drf-idempotency as its README sets it up: the middleware with its database, here SQLite."""

import json
import os
import threading
import time

import django
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.urls import path
from waitress import serve

settings.configure(
    SECRET_KEY="not secret",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["drf_idempotency"],
    MIDDLEWARE=["drf_idempotency.middleware.IdempotencyMiddleware"],
    IDEMPOTENCY={"BACKEND": "drf_idempotency.backends.database.DatabaseBackend"},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "field.db"}},
    USE_TZ=True,
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
    if os.path.exists("field.db"):
        os.remove("field.db")
    call_command("migrate", verbosity=0)
    serve(get_wsgi_application(), host="127.0.0.1", port=int(os.environ["PORT"]), threads=16)
