"""Commands without the seconds of their imports: one process has imported everything, and forks for each of them.

``python warm.py SOCKET ARGUMENT ...`` is a command of ``grpo-rounds``; with ``prefect`` or ``python -c`` before the
arguments one of those, and without any what a worker starts in place of ``python -m prefect.engine``. Signals, exit
status, output and environment are the fork's own. It dies with the process that asked for it, and with the tests.
"""

import array
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

PROGRAM = __file__
SOCKET = "GRPO_ROUNDS_TEST_SOCKET"  # where the warm process of this test session listens
FREEZE = "GRPO_ROUNDS_TEST_FREEZE"  # a name of grpo_core.faults: the process stops there once, as by SIGSTOP


@contextmanager
def running() -> Iterator[None]:
    """Have a warm process, which ends with this one; it may still be importing. The outermost call starts it."""
    if SOCKET in os.environ:
        yield
        return
    root = os.path.dirname(os.path.dirname(os.path.abspath(PROGRAM)))
    with tempfile.TemporaryDirectory(prefix="grpo-rounds-warm-") as folder:
        os.environ[SOCKET] = f"{folder}/socket"
        started = subprocess.Popen(
            [sys.executable, PROGRAM, os.environ[SOCKET], "--serve"], stdin=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"PYTHONPATH": f"{root}:{root}/tests"},
        )  # fmt: skip
        try:
            yield
        finally:
            del os.environ[SOCKET]
            started.kill()
            started.wait()


def program(seconds: float = 300) -> list[str]:
    """What to start in place of ``grpo-rounds``; waits until the warm process listens."""
    deadline = time.monotonic() + seconds
    while not os.path.exists(os.environ[SOCKET]):
        if time.monotonic() > deadline:
            raise RuntimeError("the warm process never came up; see above what it said")
        time.sleep(0.05)
    return [sys.executable, "-S", PROGRAM, os.environ[SOCKET]]


def begin(
    path: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str, output: Sequence[int] = (1, 2)
) -> tuple[socket.socket, int]:
    """Have a command started; its process id, and the channel whose end is its end. ``status`` waits on that."""
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(path)
    order = json.dumps({"argv": list(arguments), "env": dict(environment), "cwd": folder}).encode()
    descriptors = array.array("i", output).tobytes()
    channel.sendmsg([struct.pack("!I", len(order))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    channel.sendall(order)
    return channel, struct.unpack("!i", _read(channel, 4))[0]


def status(channel: socket.socket) -> int:
    """Wait for a command's end; its exit status as ``subprocess`` gives it: negative for a signal."""
    return int(struct.unpack("!i", _read(channel, 4))[0])


def _read(channel: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = channel.recv(size - len(found))
        if not more:
            raise EOFError("the warm process is gone")
        found += more
    return found


def stand_in(path: str, arguments: list[str]) -> int:
    """Be a command whose work a fork does; its exit status."""
    channel, pid = begin(path, arguments, os.environ, os.getcwd())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    ended = status(channel)
    if ended < 0:  # killed: be killed in the same way
        signal.signal(-ended, signal.SIG_DFL) if -ended != signal.SIGKILL else None
        os.kill(os.getpid(), -ended)
    return ended


def serve(path: str) -> None:
    """Import everything, then fork for each order until the process that started this one ends."""
    _die_with_parent()
    _import_everything()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path + ".new")
        listening.listen(16)
        os.rename(path + ".new", path)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            channel, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _supervise(channel)
            channel.close()


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _supervise(channel: socket.socket) -> None:
    """Start the command, tell its id and its status; never returns."""
    import select

    _die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, ancillary, *_ = channel.recvmsg(4, socket.CMSG_SPACE(8))
    output = array.array("i")
    output.frombytes(ancillary[0][2][:8])
    order = json.loads(_read(channel, struct.unpack("!I", head)[0]))
    pid = os.fork()
    if pid == 0:
        channel.close()
        _die_with_parent()
        _become(order, list(output))
    for descriptor in output:
        os.close(descriptor)
    channel.sendall(struct.pack("!i", pid))
    command = os.pidfd_open(pid)
    if channel in select.select([channel, command], [], [])[0]:  # nothing is ever said to it: the asker is gone
        os.kill(pid, signal.SIGKILL)
        os._exit(0)
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # while it is not reaped, its id is its own
    assert found is not None
    channel.sendall(struct.pack("!i", found.si_status if found.si_code == os.CLD_EXITED else -found.si_status))
    channel.recv(1)
    os._exit(0)


def _import_everything() -> None:
    # By name where an import is enough; torch and transformers import more when a model is first built and trained.
    import gc
    import importlib
    from pathlib import Path

    import stores

    for name in (
        *("deployments.cli", "deployments.serve", "flows.dry_run", "flows.session", "flows.doctor"),
        *("mlflow.data", "mlflow.store.tracking.sqlalchemy_store", "matplotlib.figure", "datasets", "torch._dynamo"),
        *("grpo_core.generation.transformers_engine", "grpo_core.policy.form"),
        *("prefect.flow_engine", "prefect.cli.server", "prefect.server.api.server"),
    ):
        importlib.import_module(name)
    import torch

    from grpo_core.models import load_policy, save_policy
    from grpo_core.policy.config import UpdateConfig
    from grpo_core.policy.optimizer import build_optimizer, new_trainer_state
    from grpo_core.tiny import build_tiny
    from tasks.learning_curve import draw_curve

    model, tokenizer = build_tiny(0)
    build_optimizer(model, new_trainer_state(model, 0), UpdateConfig())
    with tempfile.TemporaryDirectory() as folder:
        save_policy(model, tokenizer, Path(folder))
        load_policy(Path(folder), torch.device("cpu"), torch.float32)
    draw_curve("", [])
    stores.copy_tables()
    gc.collect()
    gc.freeze()  # a fork that looked for garbage in all of this would copy all of its memory


def _become(order: dict[str, Any], output: list[int]) -> None:
    """Be that command, in a fork; never returns."""
    import atexit
    import runpy

    import prefect.context

    from flows import environment

    for descriptor, source in zip((1, 2), output, strict=True):
        os.dup2(source, descriptor)
        os.close(source)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.path[:0] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    argv = order["argv"]
    is_ours = bool(argv) and argv[0] not in ("prefect", "python")
    if is_ours:
        environment.prepare(command_line=True)
    prefect.context.refresh_global_settings_context()
    _freeze_at(os.environ.pop(FREEZE, ""))
    code: Any = 0
    try:
        if is_ours:
            from deployments import cli

            sys.argv = ["grpo-rounds", *argv]
            cli.main()
        elif argv[:2] == ["python", "-c"]:
            sys.argv = argv[1:2] + argv[3:]
            exec(argv[2], {"__name__": "__main__"})
        elif argv:
            sys.argv = argv
            runpy.run_module("prefect", run_name="__main__", alter_sys=True)
        else:
            _beat_faster()
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


def _freeze_at(moment: str) -> None:
    from grpo_core import faults

    point = faults.point

    def freezing(name: str) -> None:
        if name == moment:
            faults.point = point
            os.kill(os.getpid(), signal.SIGSTOP)
        point(name)

    if moment:
        faults.point = freezing


def _beat_faster() -> None:
    """A heartbeat a second: Prefect allows none under 30, and a test would have to wait for a longer silence."""
    import prefect.flow_engine

    prefect.flow_engine.BaseFlowRunEngine.heartbeat_seconds = property(lambda _: 1)  # type: ignore[method-assign]
    prefect.flow_engine.MINIMUM_HEARTBEAT_INTERVAL = 1


if __name__ == "__main__":
    if sys.argv[2:] == ["--serve"]:
        serve(sys.argv[1])
    sys.exit(stand_in(sys.argv[1], sys.argv[2:]))
