"""A real S3-compatible server (moto's) in a process of its own, which counts requests and can be told to fail.

It takes one request after another, so that a condition and the write that depends on it are one step, as in S3.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BUCKET = "bucket"
_CONTROL = "/control"


class ObjectStore:
    """The server at a URL. ``environment`` is what its clients need."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-store",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def counts(self) -> Counter[str]:
        """Requests by their kind since the last time that this was asked."""
        return Counter(self._order({"counts": True}))

    def fail(self, method: str, path: str, status: int, times: int = 10**9, after: bool = False) -> None:
        """Answer the next requests to paths that end so by an error, before or after they have taken effect."""
        self._order({"fail": {"method": method, "path": path, "status": status, "times": times, "after": after}})

    def heal(self) -> None:
        """Fail no longer."""
        self._order({"fail": None})

    def ignore_conditions(self, ignore: bool) -> None:
        """Be a store that passes over If-Match and If-None-Match."""
        self._order({"ignore": ignore})

    def _order(self, order: dict[str, Any]) -> Any:
        request = urllib.request.Request(self.url + _CONTROL, json.dumps(order).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A server with an empty bucket."""
    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        store = ObjectStore(f"http://127.0.0.1:{int(process.stdout.readline())}")
        urllib.request.urlopen(urllib.request.Request(f"{store.url}/{BUCKET}", method="PUT"), timeout=60).close()
        yield store
    finally:
        process.kill()
        process.wait()


class _Watched:
    """moto's application behind the counter and the faults."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._counts: Counter[str] = Counter()
        self._fault: dict[str, Any] | None = None
        self._ignore = False

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == _CONTROL:
            return self._control(environ, start)
        query = environ["QUERY_STRING"]
        self._counts["LIST" if method == "GET" and "list-type" in query else method] += 1
        if self._ignore:
            for condition in ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"):
                environ.pop(condition, None)
        fault = self._fault
        if fault and fault["times"] > 0 and fault["method"] == method and path.endswith(fault["path"]):
            fault["times"] -= 1
            if fault["after"]:
                b"".join(self._application(environ, lambda *_: lambda _: None))
            else:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start(f"{fault['status']} Fault", [("Content-Length", "0")])
            return [b""]
        return self._application(environ, start)

    def _control(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        order = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        answer: Any = None
        if "counts" in order:
            answer, self._counts = dict(self._counts), Counter()
        if "fail" in order:
            self._fault = order["fail"]
        self._ignore = order.get("ignore", self._ignore)
        body = json.dumps(answer).encode()
        start("200 OK", [("Content-Length", str(len(body)))])
        return [body]


def _serve() -> None:
    import ctypes
    import signal

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.environ.setdefault("MOTO_CALL_RESET_API", "false")
    application = _Watched(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=False, request_handler=MotoRequestHandler)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve()
