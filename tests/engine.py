"""Prefect's engine, and ``grpo-rounds``, without the seconds of their imports: a warm process forks for each call.

``python engine.py`` serves; ``python engine.py SOCKET [ARGUMENT ...]`` is what a worker starts in place of ``python -m
prefect.engine``, or, with arguments, a command of ``grpo-rounds``. Signals, exit status, output and environment are the
fork's own, and the fork dies with the process that asked for it.
"""

import array
import contextlib
import json
import os
import signal
import socket
import struct
import sys
import threading
from typing import Any


def ask(path: str, arguments: list[str]) -> int:
    """Let a fork do the work; the exit status as a shell tells it."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
        order = json.dumps({"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
        output = array.array("i", [1, 2])
        channel.sendmsg([struct.pack("!I", len(order))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, output.tobytes())])
        channel.sendall(order)
        (pid,) = struct.unpack("!i", read(channel, 4))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: os.kill(pid, received))
        (status,) = struct.unpack("!i", read(channel, 4))
    if status < 0:  # killed: be killed in the same way
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    return status


def read(channel: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = channel.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def serve(path: str) -> None:
    """Import everything, then fork for each order until killed."""
    from launcher import _import_everything

    _import_everything()
    import prefect.engine
    import prefect.flow_engine

    # Prefect allows no interval under 30 seconds, and a test would have to wait for a longer silence than that.
    prefect.flow_engine.BaseFlowRunEngine.heartbeat_seconds = property(lambda _: 1)  # type: ignore[method-assign]
    prefect.flow_engine.MINIMUM_HEARTBEAT_INTERVAL = 1
    sys.modules.pop("prefect.engine")  # it is run as the main module
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path + ".new")
        listening.listen(16)
        os.rename(path + ".new", path)
        while True:
            channel, _ = listening.accept()
            supervisor = os.fork()
            if supervisor == 0:
                listening.close()
                _supervise(channel)
            channel.close()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _supervise(channel: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, ancillary, *_ = channel.recvmsg(4, socket.CMSG_SPACE(8))
    output = array.array("i")
    output.frombytes(ancillary[0][2][:8])
    order = json.loads(read(channel, struct.unpack("!I", head)[0]))
    pid = os.fork()
    if pid == 0:
        channel.close()
        _become(order, list(output))
    channel.sendall(struct.pack("!i", pid))

    def end_with_the_asker() -> None:
        with contextlib.suppress(ConnectionResetError):
            channel.recv(1)  # nothing ever comes
        if not ended.is_set():
            os.kill(pid, signal.SIGKILL)

    ended = threading.Event()
    threading.Thread(target=end_with_the_asker, daemon=True).start()
    _, status = os.waitpid(pid, 0)
    ended.set()
    with contextlib.suppress(OSError):  # nobody hears it any more
        channel.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _become(order: dict[str, Any], output: list[int]) -> None:
    import atexit
    import runpy

    for descriptor, source in zip((1, 2), output, strict=True):
        os.dup2(source, descriptor)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    code: Any = 0
    try:
        if order["argv"]:
            from deployments import cli

            sys.argv = ["grpo-rounds", *order["argv"]]
            cli.main()
        else:
            sys.argv = ["prefect.engine"]
            runpy.run_module("prefect.engine", run_name="__main__")
    except SystemExit as leave:
        code = leave.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--serve":
        serve(sys.argv[2])
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
