"""idempotency-kit as its README uses it: the decorator on what the handler calls, with Redis.

It knows nothing of HTTP, so the handler says what its errors are. With SETTINGS=best, the body and the caller are named as what
identifies a request.
"""

import asyncio
import os

import redis.asyncio
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from idempotency_kit import AsyncIdempotencyCoordinator, IdempotencyDomainService, JsonResultAdapter, async_idempotent
from idempotency_kit.core.exceptions import IdempotencyInProgressError, IdempotencyKeyReuseError, IdempotencyValidationError
from idempotency_kit.infra.storage.redis.aio import RedisAsyncIdempotencyRepository

app = FastAPI()
payments = 0
fingerprint = ("body", "caller") if os.environ.get("SETTINGS") == "best" else None


class Pay:
    def __init__(self):
        client = redis.asyncio.from_url(os.environ["REDIS_URL"])
        repository = RedisAsyncIdempotencyRepository(client)
        self.coordinator = AsyncIdempotencyCoordinator(repository=repository, domain_service=IdempotencyDomainService())

    @async_idempotent(operation="payment.create", adapter=JsonResultAdapter(), fingerprint_params=fingerprint)
    async def execute(self, body: dict, caller: str, idempotency_key: str | None = None) -> dict:
        global payments
        await asyncio.sleep(0.1)
        payments += 1
        return {"id": payments, "amount": body["amount"]}


use_case = Pay()


def caller(authorization: str | None = Header(default=None)) -> str:
    if authorization is None:
        raise HTTPException(401)
    return authorization


@app.post("/payments", status_code=201)
async def pay(body: dict, caller: str = Depends(caller), idempotency_key: str | None = Header(default=None)):
    try:
        return await use_case.execute(body, caller, idempotency_key=idempotency_key)
    except IdempotencyKeyReuseError:
        raise HTTPException(422)
    except IdempotencyInProgressError:
        raise HTTPException(409)
    except IdempotencyValidationError:
        raise HTTPException(400)


@app.get("/count")
async def count():
    return {"count": payments}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
