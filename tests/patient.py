"""HTTP as tests speak it: a server that starts, restarts or is busy is asked again, as Prefect's own client does.

Only that is made good: any other answer comes through at once, and so does the last one when the time is up.
"""

import time

import httpx

BUSY = {408, 429, 502, 503}  # Prefect answers 503 where sqlite was locked
SECONDS = 120.0  # how long one request is tried again; a server needs half a minute to start on a busy machine


class Patient(httpx.HTTPTransport):
    """Sends a request again while nobody answers or the server is busy.

    A request that broke off may have been done, so what must not be done twice needs an idempotency key.
    """

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        deadline = time.monotonic() + SECONDS
        while True:
            is_last = time.monotonic() > deadline
            try:
                response = super().handle_request(request)
            except httpx.TransportError:
                if is_last:
                    raise
            else:
                if is_last or response.status_code not in BUSY:
                    return response
                response.close()
            time.sleep(0.25)


def client(base_url: str = "", auth: tuple[str, str] | None = None) -> httpx.Client:
    """A client that waits for a server; every request of a test to a server of its own goes through one."""
    return httpx.Client(base_url=base_url, auth=auth, timeout=60, transport=Patient(), trust_env=False)
