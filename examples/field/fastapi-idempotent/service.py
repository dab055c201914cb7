"""fastapi-idempotent as its README sets it up: the middleware with its Redis storage.

It reads X-Idempotent-Key and wants 32 letters and digits, so the key is passed on under that name, made longer.
"""

import asyncio
import os

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi_idempotent import IdempotentMiddleWare

app = FastAPI()
app.add_middleware(IdempotentMiddleWare, redis_url=os.environ["REDIS_URL"])
payments = 0


def caller(authorization: str | None = Header(default=None)) -> str:
    if authorization is None:
        raise HTTPException(401)
    return authorization


@app.post("/payments", status_code=201)
async def pay(body: dict, caller: str = Depends(caller)):
    global payments
    await asyncio.sleep(0.1)
    payments += 1
    return {"id": payments, "amount": body["amount"]}


@app.get("/count")
async def count():
    return {"count": payments}


class WithLongKey:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            headers = list(scope["headers"])
            longer = [(b"x-idempotent-key", value + b"0" * 32) for name, value in headers if name == b"idempotency-key" and value]
            scope = {**scope, "headers": headers + longer}
        await self.app(scope, receive, send)


if __name__ == "__main__":
    uvicorn.run(WithLongKey(app), host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
