"""Prefect's temporary server starts in its own process while this one still imports torch, transformers and MLflow."""

import threading
import time
from collections.abc import Callable

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED

from flows.children import end_server_with_us


def start_server_early() -> Callable[[], None]:
    """Begin to start it, where a flow would; the call that comes back waits until it answers.

    Prefect itself starts it at a flow's first word and waits idly, for longer than all imports take.

    Raises:
        RuntimeError: (the call that comes back) Prefect's own, when the server doesn't come up.
    """
    if PREFECT_API_URL.value() or not PREFECT_SERVER_EPHEMERAL_ENABLED.value():
        return lambda: None
    server, failed = SubprocessASGIServer(), []

    def start() -> None:
        try:
            server.start()
        except Exception as error:  # told by whoever waits; nobody does after a config was refused
            failed.append(error)

    thread = threading.Thread(target=start, name="prefect-server-start", daemon=True)
    thread.start()
    while server.server_process is None and thread.is_alive():
        time.sleep(0.01)
    end_server_with_us()

    def wait() -> None:
        thread.join()
        if failed:
            raise failed[0]

    return wait
