"""One request to an OpenAI-compatible endpoint, with a limit on all of its time, and errors that never show the key."""

import json
import time
import urllib.error
import urllib.request
from email.message import Message
from http.client import HTTPException, HTTPMessage
from typing import IO, Any

_LONGEST_REPLY = 4 << 20  # bytes
_BUSY = (408, 409, 425, 429)  # besides every 5xx


class JudgeFailed(Exception):
    """No reply. ``may_pass``: another attempt may succeed; ``retry_after``: seconds that the endpoint asks to wait."""

    def __init__(self, message: str, *, may_pass: bool, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.may_pass = may_pass
        self.retry_after = retry_after


class JudgeTimeout(JudgeFailed):
    """No reply in time."""


class Endpoint:
    """``POST`` of a chat request to ``url``. Safe to use from several threads.

    Args:
        key: sent as a bearer token to this address only: redirects are not followed.
        timeout_seconds: wall-clock limit from the request to the last byte of the reply.
    """

    def __init__(self, url: str, key: str | None, timeout_seconds: float) -> None:
        self._url = url
        self._key = key
        self._timeout = timeout_seconds
        self._opener = urllib.request.build_opener(_NoRedirect)

    def ask(self, request: dict[str, object]) -> str:
        """The text of the first choice.

        Raises:
            JudgeFailed: there is none.
        """
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        call = urllib.request.Request(self._url, json.dumps(request).encode(), headers, method="POST")
        deadline = time.monotonic() + self._timeout
        try:
            with self._opener.open(call, timeout=self._timeout) as reply:
                return _text_of(self._read(reply, deadline))
        except urllib.error.HTTPError as error:
            with error:
                body = self._redacted(error.read(500).decode("utf-8", "replace"))
            message = f"the judge answered HTTP {error.code}: {' '.join(body.split())[:120]}"
            may_pass = error.code in _BUSY or error.code >= 500
            raise JudgeFailed(message, may_pass=may_pass, retry_after=_seconds(error.headers)) from None
        except TimeoutError:
            raise JudgeTimeout(f"the judge took over {self._timeout:g} s", may_pass=True) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise JudgeTimeout(f"the judge took over {self._timeout:g} s", may_pass=True) from None
            raise JudgeFailed(f"the judge can't be reached ({error.reason})", may_pass=True) from None
        except (OSError, HTTPException) as error:
            raise JudgeFailed(f"the judge hung up ({type(error).__name__})", may_pass=True) from None

    def _read(self, reply: Any, deadline: float) -> bytes:
        """The body. A socket's timeout is per packet, and a server may send one byte at a time for ever."""
        body = bytearray()
        while chunk := reply.read1(65_536):
            body += chunk
            if time.monotonic() > deadline:
                raise TimeoutError
            if len(body) > _LONGEST_REPLY:
                raise JudgeFailed("the judge's reply has no end", may_pass=False)
        return bytes(body)

    def _redacted(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def _text_of(body: bytes) -> str:
    try:
        text = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        text = None
    if not isinstance(text, str):
        # A proxy in between may well send its own page with status 200.
        raise JudgeFailed("the judge's reply is no chat completion", may_pass=True)
    return text


def _seconds(headers: Message) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "0")))
    except ValueError:  # a date
        return 0.0
