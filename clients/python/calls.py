"""Calls as `cargo xtask examples clients-python` makes them: CALLS payments to URL; prints each answer on a line."""

import os

import httpx

from onlyonce_client import KeepsKey

with httpx.Client(transport=KeepsKey(pause_first=0.01), headers={"Authorization": "Bearer ann"}) as client:
    for number in range(int(os.environ["CALLS"])):
        answer = client.post(os.environ["URL"], json={"amount": 1200 + number})
        print(answer.status_code, answer.text.strip(), flush=True)
