"""moto's DynamoDB on a port of its own, with what moto lacks: calls are executed one at a time, signatures are verified as
botocore makes them, and a test can have calls about its table fail.

    server.py PORT [JOURNAL]

What is written is in memory, and with JOURNAL in that file too: a server that is started with it again has all it had answered.

POST /faults takes a JSON object: for `table`, the next `count` calls of `operation` (any, where it is absent) are answered
with `status` and the error `type`; with `execute`, the call is executed before that. With `hold` they wait instead, and are
executed once `release` is sent for the table. `ahead` (in seconds) sets the clock that answers about the table are dated by; with
`undated` they have no date. `clear` ends all faults of the table. The answer says how many calls are `held`. POST /call is a call that need not be signed.
GET /calls/TABLE tells which operations were called about a table, in order.
"""

import base64
import io
import json
import re
import sys
import threading
import time
from email.utils import formatdate

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.dynamodb.responses import DynamoResult
from moto.server import create_backend_app
from werkzeug.test import EnvironBuilder
from werkzeug.serving import WSGIRequestHandler, run_simple

SECRETS = {"onlyonce": "onlyonce", "AKIDTEST": "wJalrXUtnFEMI/K7MDENG"}
TOKENS = {"AKIDTEST": "session"}
SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/\d+/([^/]+)/([^/]+)/aws4_request, SignedHeaders=([^,]+), Signature=(\w+)")
SKEW_SECONDS = 300

# moto checks each attribute of an answer against AWS's service model, which takes longer than everything else it does. These answers
# are JSON already, but for bytes.
PLAIN = {"BatchGetItem", "DeleteItem", "GetItem", "PutItem", "Query", "Scan", "UpdateItem"}
checked = DynamoResult.execute_result


def plain(result, context):
    if context.operation_model.name not in PLAIN:
        return checked(result, context)
    return 200, {"Content-Type": "application/x-amz-json-1.0"}, json.dumps(result.result, default=lambda value: base64.b64encode(value).decode())


DynamoResult.execute_result = plain

# Without moto's dispatcher, which looks through its folders for each call.
moto = create_backend_app("dynamodb")
journal = open(sys.argv[2], "a+b", buffering=0) if len(sys.argv) > 2 else None
WRITES = ("BatchWrite", "Create", "Delete", "Put", "TransactWrite", "Update")
one_at_a_time = threading.Lock()
faults = {}
calls = {}
held = {}


def emulator(environ, start):
    """Executes a call, and notes it where it may have written something."""
    target = environ["HTTP_X_AMZ_TARGET"]
    if journal is None or not target.rpartition(".")[2].startswith(WRITES):
        return moto(environ, start)
    body = environ["wsgi.input"].read()
    environ["wsgi.input"] = io.BytesIO(body)
    answer = list(moto(environ, start))
    journal.write(json.dumps([target, environ["HTTP_AUTHORIZATION"], body.decode()]).encode() + b"\n")
    return answer


def replay():
    """Executes what the journal has, in its order. A line that was cut short was not answered."""
    journal.seek(0)
    for line in journal.read().split(b"\n")[:-1]:
        target, authorization, body = json.loads(line)
        headers = {"X-Amz-Target": target, "Authorization": authorization, "Content-Type": "application/x-amz-json-1.0"}
        environ = EnvironBuilder("/", method="POST", headers=headers, data=body.encode()).get_environ()
        list(moto(environ, lambda *_: None))


def error(start, status, kind, message):
    body = json.dumps({"__type": "com.amazonaws.dynamodb.v20120810#" + kind, "message": message}).encode()
    start(f"{status} Error", [("Content-Type", "application/x-amz-json-1.0"), ("Content-Length", str(len(body)))])
    return [body]


def refusal(environ, body, now):
    """The error of a call whose signature is wrong."""
    header = lambda name: environ.get("CONTENT_TYPE" if name == "content-type" else "HTTP_" + name.upper().replace("-", "_"), "")
    signed = SIGNED.fullmatch(header("authorization"))
    if not signed:
        return "MissingAuthenticationTokenException"
    key, region, service, names, signature = signed.groups()
    if key not in SECRETS or header("x-amz-security-token") != TOKENS.get(key, ""):
        return "UnrecognizedClientException"
    date = header("x-amz-date")
    request = AWSRequest("POST", f"http://{header('host')}/", data=body, headers={name: header(name) for name in names.split(";")})
    request.context["timestamp"] = date
    signer = SigV4Auth(Credentials(key, SECRETS[key]), service, region)
    if signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request) != signature:
        return "InvalidSignatureException"
    sent = time.mktime(time.strptime(date, "%Y%m%dT%H%M%SZ")) - time.timezone
    return "InvalidSignatureException" if abs(now - sent) > SKEW_SECONDS else None


def table_of(call):
    named = call.get("TableName") or next(iter(call.get("RequestItems", {})), None)
    for part in call.get("TransactItems", [])[:1]:
        named = next(iter(part.values())).get("TableName")
    return named


def hold(table, operation):
    """Waits while a test wants this call to."""
    for fault in faults.get(table, []):
        if fault.get("hold") and fault["count"] > 0 and fault["operation"] == operation:
            fault["count"] -= 1
            call = threading.Event()
            held.setdefault(table, []).append(call)
            call.wait()


def application(environ, start):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    if environ["PATH_INFO"] == "/faults":
        fault = json.loads(body)
        waiting = held.setdefault(fault["table"], [])
        if fault.get("clear"):
            faults.pop(fault["table"], None)
        faults.setdefault(fault["table"], []).append(fault)
        if fault.get("release"):
            for call in waiting:
                call.set()
            waiting.clear()
        answer = json.dumps({"held": len(waiting)}).encode()
        start("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]
    if environ["PATH_INFO"].startswith("/calls/"):
        told = json.dumps(calls.get(environ["PATH_INFO"].rpartition("/")[2], [])).encode()
        start("200 OK", [("Content-Length", str(len(told)))])
        return [told]
    if environ["REQUEST_METHOD"] != "POST":
        start("200 OK", [("Content-Length", "0")])
        return [b""]
    if environ["PATH_INFO"] == "/call":
        environ["PATH_INFO"] = "/"
        with one_at_a_time:
            return emulator(environ, start)
    operation = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
    table = table_of(json.loads(body))
    hold(table, operation)
    with one_at_a_time:
        calls.setdefault(table, []).append(operation)
        active = faults.get(table, [])
        ahead = sum(fault.get("ahead", 0) for fault in active)
        if any(fault.get("undated") for fault in active):
            environ["onlyonce.date"] = None
        else:
            environ["onlyonce.date"] = formatdate(time.time() + ahead, usegmt=True)
        refused = refusal(environ, body, time.time() + ahead)
        if refused:
            return error(start, 400, refused, "the signature was not accepted")
        for fault in active:
            if "status" in fault and fault["count"] > 0 and fault.get("operation", operation) == operation:
                fault["count"] -= 1
                if fault.get("execute"):
                    list(emulator(environ, lambda *_: None))
                return error(start, fault["status"], fault["type"], "as a test wants it")
        return emulator(environ, start)


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass

    def send_header(self, name, value):
        if name.lower() != "date":
            super().send_header(name, value)
        elif self.environ.get("onlyonce.date"):
            super().send_header(name, self.environ["onlyonce.date"])


if journal:
    replay()
run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=Handler)
