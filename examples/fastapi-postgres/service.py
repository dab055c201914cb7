"""A payments service that writes the payment, its receipt and the stored answer in one transaction of its own."""

import json
import os

import psycopg
from fastapi import FastAPI, Request, Response
from psycopg.types.json import Jsonb
from pydantic import BaseModel

app = FastAPI()
DATABASE = os.environ.get("DATABASE_URL", "postgres://shop:shop@127.0.0.1/postgres")


class Payment(BaseModel):
    amount: int
    currency: str


@app.post("/payments")
def pay(payment: Payment, request: Request) -> Response:
    token = request.headers["Onlyonce-Token"]  # the gateway sends it: the right to complete this attempt
    with psycopg.connect(DATABASE) as db, db.transaction():  # commits at the end of the block; then answer
        (number,) = db.execute(
            "INSERT INTO payment (amount, currency) VALUES (%s, %s) RETURNING id", (payment.amount, payment.currency)
        ).fetchone()
        body = json.dumps({"id": number, "amount": payment.amount, "currency": payment.currency}).encode()
        db.execute("SELECT onlyonce_send('receipts', %s, group_key => %s)", (body, payment.currency))
        # Raises OO001 or OO002 where this attempt may no longer complete, or has. Let it: nothing is committed, and the
        # stored answer goes out instead of the 500.
        db.execute(
            "SELECT onlyonce_complete(%s, 201, %s, %s)", (token, Jsonb({"content-type": "application/json"}), body)
        )
    return Response(body, 201, media_type="application/json")
