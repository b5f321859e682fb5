"""SIGTERM: finish the shard or the optimiser step, say so in the records, and be gone in under ten seconds."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled

from grpo_core import interrupt

PATIENCE_SECONDS = 5.0  # for a safe point to come; then work is broken off wherever it is, as by a kill
LAST_SECONDS = 8.5  # for everything: a record store or server that does not answer holds nobody up
EXIT_CODE = 128 + signal.SIGTERM


class CancelledInPrefect(interrupt.Stopped, Abort):
    """Work was stopped because Prefect was asked to cancel the flow run, whose state says so already.

    To Prefect's engine it is an Abort: the state stands as it is, where any other exception would make it Crashed.
    """

    def __init__(self, state: State | None) -> None:
        super().__init__("Cancelled in Prefect.")
        self.state = state


_depth = 0
_outermost: str | None = None  # the flow run that a user cancels; the ones inside follow it


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
    global _depth, _outermost
    before = signal.signal(signal.SIGTERM, _ask), signal.signal(signal.SIGALRM, _break_off)
    if not _depth:
        _outermost = flow_run.id if deployment.id else None  # without one, no worker would pass a cancel on
    _depth += 1
    try:
        yield
    except interrupt.Stopped as stop:
        no_more_haste()
        if _is_cancelling():
            raise CancelledInPrefect(_say_cancelled()) from stop
        raise
    finally:
        _depth -= 1
        signal.signal(signal.SIGTERM, before[0])
        if not _depth:
            signal.setitimer(signal.ITIMER_REAL, 0)
            interrupt.ask(False)
        signal.signal(signal.SIGALRM, before[1])


def no_more_haste() -> None:
    """The work has stopped: what is left is to write that down, which is not to be broken off by impatience."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _is_cancelling() -> bool:
    """Whether the outermost flow run was asked to cancel; a server that does not answer has asked nothing."""
    if _outermost is None:
        return False
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(_outermost)).state
    except httpx.HTTPError:
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def _say_cancelled() -> State | None:
    """Set this flow run to Cancelled."""
    with get_client(sync_client=True) as client:
        return client.set_flow_run_state(flow_run.id, Cancelled(message="Stopped at a safe point."), force=True).state


def _ask(number: int, frame: FrameType | None) -> None:
    if not interrupt.asked():
        interrupt.ask()
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
        last = threading.Timer(LAST_SECONDS, os._exit, [EXIT_CODE])
        last.daemon = True  # goes on after the flow: what comes then, too, has only so long
        last.start()


def _break_off(number: int, frame: FrameType | None) -> None:
    raise interrupt.Stopped
