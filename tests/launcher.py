"""Starts commands of ``grpo-rounds`` in well under a second: a process that has imported everything forks for each.

The fork runs the console script's own ``main`` in a process of its own, which can be killed like any other.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Launcher:
    """A process with everything imported; ``environment`` is what all commands get. Close it at the end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | dict(environment) | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            text=True,
        )

    def start(self, *arguments: object, folder: Path, log: Path, **environment: str) -> int:
        """Start a command in a folder with more environment; its output goes into ``log`` (and log.err). Its pid."""
        order = {
            "argv": ["grpo-rounds", *map(str, arguments)], "folder": str(folder), "log": str(log), "env": environment
        }  # fmt: skip
        return int(self._ask(order)["pid"])

    def wait(self, pid: int) -> int:
        """The exit status of a command as ``subprocess`` gives it: negative for a signal."""
        return int(self._ask({"wait": pid})["status"])

    def run(self, *arguments: object, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with tempfile.TemporaryDirectory() as scratch:
            log = Path(scratch, "log")
            status = self.wait(self.start(*arguments, folder=folder, log=log, **environment))
            told, complained = log.read_text(), log.with_suffix(".err").read_text()
        return subprocess.CompletedProcess(list(map(str, arguments)), status, told, complained)

    def close(self) -> None:
        """End the process; commands that still run die with it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the launcher ended with {self._process.wait()}")
        return json.loads(answer)


def _serve() -> None:
    _import_everything()
    libc = ctypes.CDLL(None)
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            answer = {"status": os.waitstatus_to_exitcode(status)}
        else:
            pid = os.fork()
            if pid == 0:
                libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
                _become(order)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


def _import_everything() -> None:
    # By name where an import is enough; torch and transformers import more when a model is first built and trained.
    import importlib

    for name in (
        *("deployments.cli", "flows.dry_run", "flows.session", "flows.doctor"),
        *("mlflow.data", "mlflow.store.tracking.sqlalchemy_store", "matplotlib.figure", "datasets", "torch._dynamo"),
        *("grpo_core.generation.transformers_engine", "grpo_core.policy.form"),
    ):
        importlib.import_module(name)
    from grpo_core.policy.config import UpdateConfig
    from grpo_core.policy.optimizer import build_optimizer, new_trainer_state
    from grpo_core.tiny import build_tiny

    model, _ = build_tiny(0)
    build_optimizer(model, new_trainer_state(model, 0), UpdateConfig())


def _become(order: Mapping[str, Any]) -> None:
    """Be that command, in a fork; never returns."""
    import atexit

    from deployments import cli

    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for descriptor, name in ((1, order["log"]), (2, str(Path(order["log"]).with_suffix(".err")))):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.chdir(order["folder"])
    os.environ.update(order["env"])
    sys.path[:0] = order["env"].get("PYTHONPATH", "").split(os.pathsep) if "PYTHONPATH" in order["env"] else []
    sys.argv = order["argv"]
    code: Any = 0
    try:
        cli.main()
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
    _serve()
