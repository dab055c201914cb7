"""Flask-Idempotent as its README sets it up, with Redis. It reads X-Idempotent-Key; its key_finder adds Idempotency-Key."""

import os
import threading
import time

from flask import Flask, abort, jsonify, request
from flask_idempotent import Idempotent
from waitress import serve

app = Flask(__name__)
app.config["REDIS_URL"] = os.environ["REDIS_URL"]
idempotent = Idempotent(app)
idempotent.key_finder(lambda request: request.headers.get("Idempotency-Key"))

payments = 0
lock = threading.Lock()


@app.route("/payments", methods=["POST"])
def pay():
    global payments
    if "Authorization" not in request.headers:
        abort(401)
    amount = request.get_json()["amount"]
    time.sleep(0.1)
    with lock:
        payments += 1
        return jsonify(id=payments, amount=amount), 201


@app.route("/count")
def count():
    return jsonify(count=payments)


if __name__ == "__main__":
    serve(app, host="127.0.0.1", port=int(os.environ["PORT"]), threads=16)
