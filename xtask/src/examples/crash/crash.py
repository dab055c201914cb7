"""The service of service.py, killed by SIGKILL at the step that DIE_AT names. Only the test has this file."""

import os
import signal

import psycopg
import service

STEP = os.environ.get("DIE_AT", "")
AFTER = {"the rows": "INSERT INTO payment", "the message": "onlyonce_send", "onlyonce_complete": "onlyonce_complete"}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


connect, execute, exec_command = psycopg.connect, psycopg.Connection.execute, psycopg.Connection._exec_command


def connecting(*args, **kwargs):
    if STEP == "before BEGIN":
        die()
    return connect(*args, **kwargs)


def executing(self, query, *args, **kwargs):
    result = execute(self, query, *args, **kwargs)
    if STEP.startswith("after ") and AFTER.get(STEP.removeprefix("after "), "none of them") in query:
        die()
    return result


def commanding(self, command, *args, **kwargs):
    if command == b"COMMIT" and STEP == "COMMIT sent":
        self.pgconn.send_query(b"COMMIT")
        self.pgconn.flush()
        die()
    result = yield from exec_command(self, command, *args, **kwargs)
    if command == b"COMMIT" and STEP == "after COMMIT":
        die()
    return result


psycopg.connect = connecting
psycopg.Connection.execute = executing
psycopg.Connection._exec_command = commanding


async def app(scope, receive, send):
    async def sending(message):
        is_answer = scope["type"] == "http" and scope["method"] == "POST" and message["type"] == "http.response.body"
        if STEP == "in the middle of the answer" and is_answer:
            await send({**message, "body": message["body"][:10], "more_body": True})
            die()
        await send(message)

    await service.app(scope, receive, sending)
