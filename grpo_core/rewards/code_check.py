"""Checks code against tests: starts the sandboxes, keeps the clock, and reads what came out.

Code that is over its time, memory or output limit is ``wrong``: an endless loop is a fact about the response. The time
that counts is wall-clock time, from when the sandboxes are up, without what their processes spent waiting for a free
core. A sandbox that does not come up is an ``error``, or a ``timeout`` after a minute; so is a machine too busy to let
the code use its time up within ten times the limit. Neither says anything about the response.
"""

import os
import re
import select
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO

from grpo_core.rewards.code_extract import Sources
from grpo_core.rewards.inside import candidate, examiner, program
from grpo_core.rewards.sandbox import Limits, MemoryFile, Sandbox, Usage
from grpo_core.rewards.verdict import Verdict

_START_SECONDS = 60.0  # for Python to come up in its sandbox on a loaded machine
_PATIENCE = 10.0
_POLL_SECONDS = 0.1
_READ_BYTES = 1 << 16
_READY = b"ready\n"
_SHOWN_BYTES = 100
_ADDRESS = re.compile("0x[0-9a-fA-F]{6,}")  # of an object: another one in each process, so it must not be recorded


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one check and its reason."""

    verdict: Verdict
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StdinTest:
    """A program's input and the output that it has to give."""

    input: str
    output: str


def check_function(
    code: Sequence[Sources],
    tests: Sequence[str],
    to_run: Sequence[str],
    helpers: str,
    entry_point: str,
    limits: Limits,
) -> Finding:
    """Runs tests against code, each in a sandbox of its own, joined by two pipes.

    Args:
        code: the code, in alternatives: the first that compiles runs.
        tests: Python source that calls the code by name and raises where it is wrong.
        to_run: names of what the tests define and leave to be run: HumanEval's ``check(candidate)``, functions
            ``test_…``, ``TestCase`` classes; others are passed over.
        helpers: Python source that the tests may use and the code can't replace.
        entry_point: the name that ``check`` is called with; may be empty.
        limits: ``seconds`` for the code and its tests together.
    """
    with ExitStack() as stack:
        (question, ask), (answer, reply), (said, say) = (_pipe(stack) for _ in range(3))
        channel = (question.fileno(), reply.fileno())
        asking = (answer.fileno(), ask.fileno(), say.fileno())
        code_orders = (tuple(code), limits.output_bytes)
        code_side = stack.enter_context(Sandbox(candidate, code_orders, limits, channel))
        test_orders = (tuple(tests), tuple(to_run), helpers, entry_point, limits.output_bytes)
        test_side = stack.enter_context(Sandbox(examiner, test_orders, limits, asking))
        for end in (question, reply, answer, ask, say):
            end.close()
        watch = _Watch([code_side, test_side], limits)
        lines, over = watch.read(said, lambda received: received.startswith(_READY) and received.count(b"\n") == 2)
        if not lines.startswith(_READY):
            return over or _not_started([code_side, test_side])
        if over is not None:
            return over
        word, _, detail = lines.removeprefix(_READY).decode("utf-8", "replace").rstrip("\n").partition(" ")
        if word not in (Verdict.OK, Verdict.WRONG, Verdict.ERROR):
            return Finding(Verdict.ERROR, f"the tests ended without a verdict: {test_side.failure()}")
        return Finding(Verdict(word), _ADDRESS.sub("0x…", detail))


def check_program(code: Sequence[Sources], test: StdinTest, limits: Limits) -> Finding:
    """Runs code as a program in a sandbox of its own and compares what it prints.

    Blanks at the end of lines and empty lines at the end don't count. A status other than 0 is ``wrong``.
    """
    with ExitStack() as stack:
        (up, ready), (printed, output) = (_pipe(stack) for _ in range(2))
        given = stack.enter_context(MemoryFile(test.input.encode("utf-8", "surrogatepass")))
        orders = (tuple(code),)
        running = stack.enter_context(
            Sandbox(program, orders, limits, [ready.fileno()], standard_input=given, standard_output=output.fileno())
        )
        ready.close()
        output.close()
        watch = _Watch([running], limits)
        lines, over = watch.read(up, lambda received: received == _READY)
        if lines != _READY:
            return over or _not_started([running])
        data, over = watch.read(printed, lambda received: len(received) > limits.output_bytes)
        if over is not None:
            return over
        if len(data) > limits.output_bytes:
            return Finding(Verdict.WRONG, "over the output limit")
        if not _same_text(data, test.output):
            shown = repr(data[:_SHOWN_BYTES].decode("utf-8", "replace"))
            return Finding(Verdict.WRONG, f"printed {_ADDRESS.sub('0x…', shown)}")
        if over := watch.end(running):
            return over
        status = running.process.returncode
        return Finding(Verdict.OK) if status == 0 else Finding(Verdict.WRONG, f"ended with status {status}")


def _pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    source, sink = os.pipe()
    return stack.enter_context(FileIO(source, "rb")), stack.enter_context(FileIO(sink, "wb"))


def _not_started(sandboxes: Sequence[Sandbox]) -> Finding:
    said = ", ".join(sandbox.failure() for sandbox in sandboxes)
    return Finding(Verdict.ERROR, f"the sandbox did not start: {said}")


def _same_text(printed: bytes, expected: str) -> bool:
    try:
        text = printed.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return _lines(text) == _lines(expected)


def _lines(text: str) -> list[str]:
    lines = [line.rstrip(" \t\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


class _Watch:
    """Keeps the limits of a check while something is waited for. The clock starts when ``ready`` has been read."""

    def __init__(self, sandboxes: Sequence[Sandbox], limits: Limits) -> None:
        self._sandboxes = sandboxes
        self._limits = limits
        self._ready = False
        self._began = self._looked = time.monotonic()

    def read(self, source: FileIO, is_enough: Callable[[bytearray], bool]) -> tuple[bytes, Finding | None]:
        """Reads until the end, until it is enough, or until a limit is met, which is then the finding."""
        received = bytearray()
        while not is_enough(received):
            if select.select([source], [], [], _POLL_SECONDS)[0]:
                part = os.read(source.fileno(), _READ_BYTES)
                if not part:
                    break
                received += part
                if not self._ready and received.startswith(_READY):
                    self._ready = True
                    self._began = time.monotonic()
            if over := self._over():
                return bytes(received), over
        return bytes(received), None

    def end(self, sandbox: Sandbox) -> Finding | None:
        """Waits for a process that has closed its output."""
        while sandbox.process.poll() is None:
            if over := self._over():
                return over
            time.sleep(0.001)
        return None

    def _over(self) -> Finding | None:
        """The limit that is met, if one is; looks no more often than it has to."""
        now = time.monotonic()
        if now - self._looked < _POLL_SECONDS:
            return None
        self._looked = now
        spent = now - self._began
        if not self._ready:
            late = spent >= _START_SECONDS
            return Finding(Verdict.TIMEOUT, f"the sandbox did not start in {_START_SECONDS:g} s") if late else None
        usage = sum((sandbox.usage() for sandbox in self._sandboxes), Usage())
        if usage.memory_bytes > self._limits.memory_bytes:
            return Finding(Verdict.WRONG, "over the memory limit")
        if spent < self._limits.seconds:
            return None
        if max(spent - usage.waited_seconds, usage.cpu_seconds) >= self._limits.seconds:
            return Finding(Verdict.WRONG, "over the time limit")
        if spent >= _PATIENCE * self._limits.seconds:
            return Finding(Verdict.TIMEOUT, "the machine was too busy")
        return None
