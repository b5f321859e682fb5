"""One round: rollouts from the policy of the round before, their rewards and advantages, then the next policy."""

from prefect import flow

from flows.stages import stages_of
from tasks.run import open_run
from tasks.stage import run_stage


@flow(name="round", flow_run_name="round-{round_number:04d}")
def run_round(run_dir: str, round_number: int) -> None:
    """Do what is missing of a round; stages whose artifacts lie on disk show as Cached.

    The caller holds the run's lock. Round 0 brings the starting policy, the prompts and the first evaluation.
    """
    run = open_run(run_dir)
    for task, stage in stages_of(run, round_number):
        run_stage(task, stage, run, round_number)
