"""A training run: rounds, one after another, from wherever the folder stands."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from prefect import flow, tags

from flows.children import end_server_with_us
from flows.recover import TAG, claim_flow_run, tag_of
from flows.round import run_round
from flows.round_artifacts import RoundArtifacts
from flows.stages import first_incomplete
from flows.stopping import no_more_haste, polite_stop
from grpo_core import interrupt
from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from grpo_core.lease import LeaseLost
from tasks import filter_prompts
from tasks.retention import apply_retention
from tasks.run import Run, RunIsHeld, create_or_open, discard_new, single_writer
from tasks.tracking import Tracker

OnRound = Callable[[Run, int], None]
_on_round: OnRound | None = None


def set_on_round(call: OnRound | None) -> None:
    """Let the command line hear of each round that stands complete."""
    global _on_round
    _on_round = call


@flow(name="train")
def train(config: RunConfig, run_dir: str) -> None:
    """Train until the run has ``config.rounds`` rounds; what already lies in ``run_dir`` is proven and kept.

    Raises:
        UserError: bad input, or someone else is writing this run.
        Stopped: SIGTERM came.
        NonFiniteUpdate: a loss or gradient was not finite; nothing of that round's policy was saved.
    """
    with polite_stop(), writer(run_dir):
        train_rounds(config, run_dir)


@contextmanager
def writer(run_dir: str, patience_seconds: float = 0) -> Iterator[None]:
    """Hold the run's lock, waiting for so long until it is free. Raises RunIsHeld after that."""
    deadline = time.monotonic() + patience_seconds
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(single_writer(run_dir))
                break
            except RunIsHeld:
                if time.monotonic() >= deadline:
                    raise
            interrupt.safe_point()
            time.sleep(1)
        yield


def train_rounds(config: RunConfig, run_dir: str, last_of: Callable[[int], int] | None = None) -> int:
    """Take the config over and go on until the run has ``config.rounds`` rounds. The caller holds the lock, in a flow.

    Args:
        last_of: the round to end with, given the first that lacks anything; a run that has it already stays as it is.

    Returns:
        How many rounds are done.
    """
    run, is_new = create_or_open(run_dir, config)
    run.store.sweep()
    claim_flow_run(run.identity, run_dir)
    end_server_with_us()
    try:
        with tags(TAG, tag_of(run.identity)):
            return _rounds(run, is_new, last_of)
    except LeaseLost:  # the folder is another's
        raise
    except UserError:
        if is_new and run.artifact(filter_prompts.FOLDER).manifest() is None:
            discard_new(run)
        raise


def _rounds(run: Run, is_new: bool, last_of: Callable[[int], int] | None) -> int:
    first, last = first_incomplete(run), run.config.rounds
    if last_of is not None:
        last = min(last, last_of(first))
        if first > last:
            return first - 1
    tracker = None if is_new else _tracker(run)  # a new run is recorded once its first stages were not refused
    try:
        # The last complete round goes through Prefect once more, so that its stages show there as Cached.
        begin = max(0, first - 1)
        for number in range(begin):
            _tell(run, number)
        if begin > 0:
            run_round(run.uri, 0)
        with RoundArtifacts(run) as shown:
            for number in range(begin, last + 1):
                run_round(run.uri, number)
                tracker = tracker or _tracker(run)
                apply_retention(run, number)
                tracker.sync(range(number + 1) if number == begin else [number], more_to_come=number < last)
                _tell(run, number)
                if number >= first:
                    shown.round_done(number, tracker)
                interrupt.safe_point()
    except LeaseLost:  # so is the record
        raise
    except BaseException as error:
        no_more_haste()
        if tracker is not None:
            tracker.set_status("FAILED" if isinstance(error, Exception) else "KILLED")
            tracker.sync()
        raise
    if tracker is not None and last == run.config.rounds:
        tracker.set_status("FINISHED")
    return last


def _tracker(run: Run) -> Tracker:
    tracker = Tracker(run)
    tracker.set_status("RUNNING")
    return tracker


def _tell(run: Run, number: int) -> None:
    if _on_round:
        _on_round(run, number)
