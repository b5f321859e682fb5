"""So many rounds more, one after another: what a user starts when the schedule is too slow."""

from typing import Annotated

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from flows.changes import refuse_to_redo
from flows.next_round import with_rounds_of_the_run
from flows.places import Minutes, Place
from flows.preflight import check_config
from flows.recover import change_tags, release_flow_run
from flows.stages import first_incomplete
from flows.stopping import polite_stop
from flows.train import train_rounds, writer
from grpo_core.config import RunConfig
from grpo_core.storage import Store
from tasks.run import Run

_UNTIL = "grpo-until-"  # the tag by which a retry knows where its campaign ends


@flow(name="campaign", flow_run_name="{config.name}-{rounds}-more")
def campaign(
    config: RunConfig,
    run_dir: Place,
    rounds: Annotated[int, Field(ge=1, description="How many rounds more than the run has now.")],
    wait_minutes: Minutes = 60,
) -> int:
    """Do so many rounds more; the run's own number of rounds is raised where it is in the way.

    Waits while another process writes the run. A retry goes on to where the first try was to end.

    Returns:
        How many rounds are done.

    Raises:
        UserError: bad input, a config by which finished rounds would be made again, or the run was being written for
            all of ``wait_minutes``.
        Stopped: SIGTERM came.
        NonFiniteUpdate: a loss or gradient was not finite; nothing of that round's policy was saved.
    """
    with polite_stop():
        release_flow_run()
        with writer(run_dir, wait_minutes * 60):
            config = with_rounds_of_the_run(config, run_dir)
            until = _until(Run(Store(run_dir).uri, config), rounds)
            config = config.model_copy(update={"rounds": max(config.rounds, until)})
            refuse_to_redo(config, run_dir)
            check_config(config, run_dir)
            return train_rounds(config, run_dir, lambda _: until)


def _until(run: Run, more: int) -> int:
    """The last round of this campaign, settled when it first gets the lock."""
    for tag in flow_run.tags:
        if tag.startswith(_UNTIL):
            return int(tag.removeprefix(_UNTIL))
    until = max(first_incomplete(run) - 1, 0) + more
    change_tags(add=[f"{_UNTIL}{until}"])
    return until
