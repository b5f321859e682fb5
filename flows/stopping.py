"""SIGTERM: finish the shard or the optimiser step, say so in the records, and be gone in under ten seconds."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from grpo_core import interrupt

PATIENCE_SECONDS = 5.0  # for a safe point to come; then work is broken off wherever it is, as by a kill
LAST_SECONDS = 8.5  # for everything: a record store or server that does not answer holds nobody up
EXIT_CODE = 128 + signal.SIGTERM


_depth = 0


@contextmanager
def polite_stop() -> Iterator[None]:
    """Inside, SIGTERM asks the work to stop, and ``Stopped`` comes out of it.

    Nothing depends on this: a kill at any moment is survived. It only makes a shorter way back and a true record. Every
    flow's body needs it, because Prefect puts a handler of its own in place where a flow begins. In another thread than
    the main one, where Python can't take signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    global _depth
    before = signal.signal(signal.SIGTERM, _ask), signal.signal(signal.SIGALRM, _break_off)
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        signal.signal(signal.SIGTERM, before[0])
        if not _depth:
            signal.setitimer(signal.ITIMER_REAL, 0)
            interrupt.ask(False)
        signal.signal(signal.SIGALRM, before[1])


def _ask(number: int, frame: FrameType | None) -> None:
    if not interrupt.asked():
        interrupt.ask()
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
        last = threading.Timer(LAST_SECONDS, os._exit, [EXIT_CODE])
        last.daemon = True  # goes on after the flow: what comes then, too, has only so long
        last.start()


def _break_off(number: int, frame: FrameType | None) -> None:
    raise interrupt.Stopped
