"""Prefect's temporary server as a command's own child, on its way before anything heavy is imported.

Prefect would start one at a flow's first word, import all of a server into the flow's process for that, and wait idly
for longer than all imports take. ``python -m flows.own_server PORT`` is the server.
"""

import atexit
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_SERVER_EPHEMERAL_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from flows.children import end_with_us
from flows.environment import heavy_imports

_HOST = "127.0.0.1"
_SECONDS_TO_END = 5
# No flow of ours asks it for Prefect's own block types; a server that stays makes their table when it starts.
_LEAN = {"PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false"}


def start_own_server() -> AbstractContextManager[None]:
    """Begin to start it, where Prefect would start one; entering what comes back waits for it, and flows speak to it.

    It goes on until this process ends, for what Prefect has to tell it then.
    """
    if PREFECT_API_URL.value() or not PREFECT_SERVER_EPHEMERAL_ENABLED.value():
        return nullcontext()
    port = _free_port()
    # A session of its own: Ctrl-C at the terminal is for us, who still have something to tell it then.
    command = [sys.executable, "-m", "flows.own_server", str(port)]
    server = subprocess.Popen(command, env=_LEAN | os.environ, start_new_session=True)
    end_with_us(server.pid)
    atexit.register(server.terminate)  # all that is left to do if nobody ever speaks to it
    return _spoken_to(server, port)


@contextmanager
def _spoken_to(server: "subprocess.Popen[bytes]", port: int) -> Iterator[None]:
    if not _answers(server, port):  # Prefect starts its own, and tells what is wrong
        server.kill()
        yield
        return
    atexit.register(_end, server)  # before Prefect's own, so that it runs after them
    # Nobody listens for heartbeats there, and each flow run waits for half a second on average to end them.
    with temporary_settings({PREFECT_API_URL: f"http://{_HOST}:{port}/api", PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(server: "subprocess.Popen[bytes]", port: int) -> bool:
    deadline = time.monotonic() + PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()
    while server.poll() is None and time.monotonic() < deadline:
        asked = http.client.HTTPConnection(_HOST, port, timeout=5)
        try:
            asked.request("GET", "/api/health")
            return asked.getresponse().status == 200
        except OSError:
            time.sleep(0.05)
        finally:
            asked.close()
    return False


def _end(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    try:
        server.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _serve(port: int) -> None:
    with heavy_imports():
        import uvicorn
        from prefect.server.api.server import create_app

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # What its end cuts short complains, into the command's own output, where nobody can do anything about it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            super().handle_exit(sig, frame)

    app = create_app(ephemeral=True, final=True)
    settings = uvicorn.Config(app, host=_HOST, port=port, log_level="error", timeout_graceful_shutdown=_SECONDS_TO_END)
    Server(settings).run()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
