"""A service that knows nothing of keys. The others are the same with a library in front of the handler."""

import asyncio
import os

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException

app = FastAPI()
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


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
