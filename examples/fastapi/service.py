"""A payments service as anyone would write it. It knows nothing of keys or retries."""

import asyncio
from uuid import uuid4

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
charges: list[dict] = []


class Payment(BaseModel):
    amount: int
    currency: str


@app.post("/payments", status_code=201)
async def pay(payment: Payment) -> dict:
    await asyncio.sleep(0.1)  # the bank takes its time
    charge = {"id": f"pay_{uuid4().hex}", **payment.model_dump()}
    charges.append(charge)
    return charge


@app.get("/charges")
async def count() -> dict:
    return {"charges": len(charges)}
