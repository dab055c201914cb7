"""A payments service that can be asked whether a payment happened. Python's standard library only."""

import json
import os
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

# One row for each attempt the gateway made: its token, and the answer once the work is done.
db = sqlite3.connect(os.environ.get("DATABASE", "payments.db"), check_same_thread=False)
db.execute("CREATE TABLE IF NOT EXISTS charge (id TEXT PRIMARY KEY, amount INTEGER)")
db.execute("CREATE TABLE IF NOT EXISTS attempt (token TEXT PRIMARY KEY, answer TEXT)")
lock = threading.Lock()


def charge(token: str | None, order: dict) -> str:
    """The charge, the token and the answer in one transaction: all of them are there, or none."""
    payment = {"id": f"pay_{uuid4().hex}", "amount": order["amount"]}
    answer = json.dumps(payment)
    with lock, db:
        if token:
            # Fails if the probe was asked about this attempt before it came: then it must not run any more.
            db.execute("INSERT INTO attempt VALUES (?, ?)", (token, answer))
        db.execute("INSERT INTO charge VALUES (?, ?)", (payment["id"], payment["amount"]))
    return answer


def verdict(token: str) -> dict:
    with lock, db:
        # From now on an attempt with this token that comes late finds the row and does nothing. So "final" is true.
        added = db.execute("INSERT OR IGNORE INTO attempt VALUES (?, NULL)", (token,)).rowcount
        (answer,) = db.execute("SELECT answer FROM attempt WHERE token = ?", (token,)).fetchone()
    if added or answer is None:
        return {"verdict": "did-not-happen", "final": True}
    headers = {"content-type": "application/json"}
    return {"verdict": "happened", "response": {"status": 201, "headers": headers, "body": answer}}


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            answer = charge(self.headers["onlyonce-token"], order)
        except sqlite3.IntegrityError:
            return self.answer(409, '{"error": "this attempt was given up"}')
        if order.get("then") == "die":  # after the charge and before the answer, as services do
            return self.connection.close()
        self.answer(201, answer)

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == "/probe":
            return self.answer(200, json.dumps(verdict(parse_qs(url.query)["token"][0])))
        with lock:
            (count,) = db.execute("SELECT count(*) FROM charge").fetchone()
        self.answer(200, json.dumps({"charges": count}))

    def answer(self, status: int, body: str):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "3000"))), Service).serve_forever()
