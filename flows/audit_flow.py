"""Prove every artifact of a run on a schedule: harm is found before it is needed."""

from collections import Counter

from prefect import flow

from flows.places import Place
from flows.stages import examine
from grpo_core.errors import UserError
from tasks.run import open_run


@flow(name="audit")
def audit(run_dir: Place) -> dict[str, int]:
    """Prove every artifact byte by byte; what is not made yet is no harm, nor what a changed config has made stale.

    Returns:
        How many stages are in each state.

    Raises:
        UserError: an artifact is damaged; the sentence names the first.
    """
    run = open_run(run_dir)
    found = [status for number in run.rounds_on_disk() for status in examine(run, number)]
    damaged = [status for status in found if status.condition.state == "damaged"]
    if damaged:
        first = damaged[0]
        raise UserError(
            f"{len(damaged)} stages of '{run.uri}' are damaged, first {first.stage} of round {first.round} "
            f"({first.condition.why}); make them again with: grpo-rounds resume {run.uri}"
        )
    return dict(Counter(status.condition.state for status in found))
