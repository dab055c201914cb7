"""idemptx as its README sets it up: the decorator with the Redis backend."""

import asyncio
import os

import redis.asyncio
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from idemptx import idempotent
from idemptx.backend import AsyncRedisBackend

app = FastAPI()
backend = AsyncRedisBackend(redis.asyncio.from_url(os.environ["REDIS_URL"]))
payments = 0


def caller(authorization: str | None = Header(default=None)) -> str:
    if authorization is None:
        raise HTTPException(401)
    return authorization


@app.post("/payments")
@idempotent(storage_backend=backend)
async def pay(request: Request, body: dict, caller: str = Depends(caller)):
    global payments
    await asyncio.sleep(0.1)
    payments += 1
    # Only answers of this type are kept, its README says.
    return JSONResponse({"id": payments, "amount": body["amount"]}, status_code=201)


@app.get("/count")
async def count():
    return {"count": payments}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
