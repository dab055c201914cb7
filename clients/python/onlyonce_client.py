"""A client that keeps its key: an httpx transport. See README.md beside it."""

import email.utils
import random
import secrets
import time

import httpx

KEYED = {"POST", "PATCH", "PUT", "DELETE"}
# Where an answer does not say whether it may be tried again. The key makes each of these safe.
AGAIN = {429, 500, 502, 503, 504}
AGAIN_IF_TOLD_WHEN = {409, 425}


class KeepsKey(httpx.BaseTransport):
    """Makes the key before the first try, and sends it with every try of the same request.

    save(request, key) is called before the first try, to keep the key where it survives a restart. After one, send the request
    again with the saved key in its header: it is kept.
    """

    def __init__(self, transport=None, *, header="Idempotency-Key", tries_max=8, give_up_after=120.0,
                 pause_first=0.2, pause_max=20.0, save=None):
        self.transport = transport or httpx.HTTPTransport()
        self.header = header
        self.tries_max = tries_max
        self.give_up_after = give_up_after
        self.pause_first = pause_first
        self.pause_max = pause_max
        self.save = save

    def handle_request(self, request):
        if request.method not in KEYED:
            return self.transport.handle_request(request)
        request.read()  # A body that is sent again must be there.
        if self.header not in request.headers:
            key = secrets.token_hex(16)
            request.headers[self.header] = key
            if self.save:
                self.save(request, key)
        began = time.monotonic()
        for number in range(1, self.tries_max + 1):
            answer = pause = None
            try:
                answer = self.transport.handle_request(request)
                answer.read()
            except httpx.TransportError as error:
                pause, failed = self._back_off(number), error
            else:
                pause = self._pause(answer, number)
                if pause is None:
                    return answer
            if number == self.tries_max or time.monotonic() - began + pause > self.give_up_after:
                break
            time.sleep(pause)
        if answer is not None:
            return answer
        # It may have run: whoever catches this finds the key in request.headers and can send the request again.
        raise failed

    def close(self):
        self.transport.close()

    def _pause(self, answer, number):
        """How long to wait before the next try; None where there is none."""
        told = retry_after(answer.headers.get("retry-after"))
        again = None
        if answer.headers.get("content-type", "").split(";")[0].strip().lower() == "application/problem+json":
            try:
                again = answer.json().get("retryable")
            except (ValueError, AttributeError):
                pass
        if not isinstance(again, bool):
            again = answer.status_code in AGAIN or (answer.status_code in AGAIN_IF_TOLD_WHEN and told is not None)
        if not again:
            return None
        return self._back_off(number) if told is None else told

    def _back_off(self, number):
        return random.random() * min(self.pause_max, self.pause_first * 2 ** (number - 1))


def retry_after(text):
    """Seconds from now: given as seconds, or as a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
