"""idemptx as its README sets it up: the decorator with the Redis backend.

Its exceptions are not HTTP's. With SETTINGS=best, the service says which answers they are.
"""

import asyncio
import os

import redis.asyncio
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from idemptx import idempotent
from idemptx.backend import AsyncRedisBackend
from idemptx.exceptions import ConflictRequestException, MissingKeyException, RequestInProgressException

app = FastAPI()
backend = AsyncRedisBackend(redis.asyncio.from_url(os.environ["REDIS_URL"]))
payments = 0

ANSWERS = {MissingKeyException: 400, RequestInProgressException: 409, ConflictRequestException: 422}
if os.environ.get("SETTINGS") == "best":
    for exception in ANSWERS:

        @app.exception_handler(exception)
        async def refuse(request: Request, error: Exception):
            return JSONResponse({"detail": str(error)}, status_code=ANSWERS[type(error)])



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
