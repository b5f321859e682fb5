"""One engine's process as its fleet sees it: start, orders, messages, and an end that leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import grpo_core

_LOG_LINES = 30
_CHUNK = 65_536


@dataclass(slots=True, eq=False)
class Order:
    """One thing for an engine to do; see ``worker.py`` for the kinds.

    Attributes:
        told: JSON, what the order's file holds.
        patience: seconds without a word after which the engine counts as hung.
        completions: that it makes; ``heard`` of them are finished.
        engine: the number of the one that has to do it; None: any.
        failures: how many engines have died of it.
    """

    do: str
    told: str
    patience: float
    completions: int = 0
    engine: int | None = None
    heard: int = 0
    failures: int = 0


class EngineProcess:
    """An engine in a session of its own.

    Args:
        folder: for its set-up, its orders and its log.
        setup: see ``worker.py``.
    """

    def __init__(
        self, number: int, python: Path, folder: Path, setup: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self.number = number
        self.ready = False
        self.orders: deque[Order] = deque()
        self.since = time.monotonic()
        self._folder = folder / f"engine-{number}"
        self._folder.mkdir(exist_ok=True)
        self._given = 0
        self._received = b""
        self.log = self._folder / "log.txt"
        told = self._folder / "setup.json"
        told.write_text(json.dumps({**setup, "parent": os.getpid()}))
        with self.log.open("ab") as log:
            self.process = (
                _launcher(os.getpid())
                .submit(
                    subprocess.Popen,
                    [str(python), "-P", "-m", "grpo_core.generation.worker", str(told)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    start_new_session=True,  # Ctrl-C at the terminal is for us, and the whole set is ended as one group
                    cwd=self._folder,
                    env={**environment, "PYTHONPATH": str(_package(folder))},
                )
                .result()
            )

    @property
    def output(self) -> int:
        """The descriptor of its messages."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def give(self, order: Order) -> None:
        """Hand an order over; it does one after the other."""
        self._given += 1
        file = self._folder / f"order-{self._given:06d}.json"
        file.write_text(order.told, encoding="utf-8")
        if not self.orders:
            self.since = time.monotonic()
        self.orders.append(order)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": order.do, "file": str(file)}).encode() + b"\n")
        except BrokenPipeError:
            return  # its output ends, too, and that is looked at

    def receive(self) -> list[dict[str, Any]] | None:
        """What it has said since; None when its output has ended. Call when there is something to read."""
        data = os.read(self.output, _CHUNK)
        if not data:
            return None
        self.since = time.monotonic()
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def end(self) -> None:
        """Kill it and all that it started, and wait until it is gone: only then is its memory free."""
        with contextlib.suppress(ProcessLookupError):  # it went by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@cache
def _launcher(_pid: int) -> ThreadPoolExecutor:
    """A thread that lives as long as this process: an engine dies with the thread that started it (PDEATHSIG)."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="engines")


def _package(folder: Path) -> Path:
    """A folder that holds this package alone: beside it may lie packages that would shadow vLLM's own."""
    place = folder / "package"
    place.mkdir(exist_ok=True)
    link = place / "grpo_core"
    if not link.is_symlink():
        link.symlink_to(Path(grpo_core.__file__).resolve().parent)
    return place
