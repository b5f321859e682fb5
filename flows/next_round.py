"""One round a slot: what a schedule calls, again and again."""

from typing import Any

from prefect import flow
from prefect.states import Cancelled, Completed

from flows.changes import refuse_to_redo
from flows.places import Place
from flows.preflight import check_config
from flows.recover import release_flow_run
from flows.slots import cancel_missed_slots
from flows.stopping import polite_stop
from flows.train import train_rounds, writer
from grpo_core.config import RunConfig
from grpo_core.storage import Store
from tasks.run import CONFIG, RunIsHeld, open_run


@flow(name="next-round", flow_run_name="{config.name}")
def next_round(config: RunConfig, run_dir: Place) -> Any:
    """Do the first round that lacks anything, or the rest of it; a run that has all its rounds stays as it is.

    A run that another process is writing is left to it, and this flow run ends as Cancelled.

    Raises:
        UserError: bad input, or a config by which finished rounds would be made again.
        Stopped: SIGTERM came.
        NonFiniteUpdate: a loss or gradient was not finite; nothing of that round's policy was saved.
    """
    with polite_stop():
        release_flow_run()
        cancel_missed_slots()
        try:
            with writer(run_dir):
                config = with_rounds_of_the_run(config, run_dir)
                refuse_to_redo(config, run_dir)
                check_config(config, run_dir)
                done = train_rounds(config, run_dir, one_round)
        except RunIsHeld as held:
            return Cancelled(message=str(held))
    return Completed(message=f"{done} of {config.rounds} rounds are done.")


def one_round(first: int) -> int:
    """Round 0, which brings the starting policy, is a part of the first slot."""
    return max(first, 1)


def with_rounds_of_the_run(config: RunConfig, run_dir: str) -> RunConfig:
    """The config with the run's own number of rounds, where a campaign has raised it since."""
    if not Store(run_dir).exists(CONFIG):
        return config
    return config.model_copy(update={"rounds": max(config.rounds, open_run(run_dir).config.rounds)})
