"""A training run: rounds, one after another, from wherever the folder stands."""

from collections.abc import Callable

from prefect import flow, tags

from flows.children import end_server_with_us
from flows.recover import claim_flow_run, tag_of
from flows.round import run_round
from flows.stages import first_incomplete
from flows.stopping import no_more_haste, polite_stop
from grpo_core import interrupt
from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from tasks import filter_prompts
from tasks.retention import apply_retention
from tasks.run import Run, create_or_open, discard_new, single_writer
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
    with single_writer(run_dir), polite_stop():
        run, is_new = create_or_open(run_dir, config)
        run.store.sweep()
        claim_flow_run(run.identity, run_dir)
        end_server_with_us()
        try:
            with tags(tag_of(run.identity)):
                _rounds(run, is_new)
        except UserError:
            if is_new and run.artifact(filter_prompts.FOLDER).manifest() is None:
                discard_new(run)
            raise


def _rounds(run: Run, is_new: bool) -> None:
    tracker = None if is_new else _tracker(run)  # a new run is recorded once its first stages were not refused
    try:
        first = first_incomplete(run)
        # The last complete round goes through Prefect once more, so that its stages show there as Cached.
        begin = max(0, first - 1)
        for number in range(begin):
            _tell(run, number)
        if begin > 0:
            run_round(run.uri, 0)
        for number in range(begin, run.config.rounds + 1):
            run_round(run.uri, number)
            tracker = tracker or _tracker(run)
            apply_retention(run, number)
            tracker.sync(range(number + 1) if number == begin else [number])
            _tell(run, number)
            interrupt.safe_point()
    except BaseException as error:
        no_more_haste()
        if tracker is not None:
            tracker.set_status("FAILED" if isinstance(error, Exception) else "KILLED")
            tracker.sync()
        raise
    if tracker is not None:
        tracker.set_status("FINISHED")


def _tracker(run: Run) -> Tracker:
    tracker = Tracker(run)
    tracker.set_status("RUNNING")
    return tracker


def _tell(run: Run, number: int) -> None:
    if _on_round:
        _on_round(run, number)
