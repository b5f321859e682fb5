"""Measure one round's policy on the held-out prompts; the result is an artifact of the run like any other."""

from collections.abc import Mapping

from prefect import flow

from flows.places import Minutes, Place
from flows.stopping import polite_stop
from flows.train import writer
from grpo_core.errors import UserError
from tasks import filter_prompts, initial_policy
from tasks.evaluate_policy import STAGE
from tasks.run import Run, open_run, round_folder
from tasks.stage import execute, listener
from tasks.tracking import Tracker


@flow(name="evaluate")
def evaluate(run_dir: Place, round_number: int | None = None, wait_minutes: Minutes = 60) -> Mapping[str, float]:
    """Measure the policy of a round, by default the newest; waits while the run is being written.

    Raises:
        UserError: no such policy, one that is harmed, or the run was written for all of ``wait_minutes``.
    """
    with polite_stop():
        return evaluate_round(run_dir, round_number, wait_minutes * 60)[1]


def evaluate_round(
    run_dir: str, round_number: int | None, patience_seconds: float = 0
) -> tuple[int, Mapping[str, float], str | None]:
    """The number of the round, its held-out metrics, and one sentence when MLflow's record is behind.

    Raises:
        UserError: no such policy, one that is harmed, or someone else is writing the run.
    """
    open_run(run_dir)  # a folder that holds no run gets no lock, either
    with writer(run_dir, patience_seconds):
        run = open_run(run_dir)  # whoever held the lock before may have changed its config and added rounds
        number = _round_to_measure(run, run_dir, round_number)
        with run.local_policy(number):
            if hears := listener():
                hears.stage_started(STAGE.name, number, "")
            metrics = execute(STAGE, run, number)["metrics"]
        problem = Tracker(run).sync([number])
    return number, metrics, problem


def _round_to_measure(run: Run, run_dir: str, round_number: int | None) -> int:
    rounds = [n for n in run.rounds_on_disk() if n <= run.config.rounds]
    finished = [n for n in rounds if run.artifact(round_folder(n, "policy")).manifest()]
    if not finished:
        raise UserError(f"'{run_dir}' has no policy yet; run: grpo-rounds resume {run_dir}")
    number = finished[-1] if round_number is None else round_number
    if number not in finished:
        raise UserError(f"'{run_dir}' has no policy of round {number}; --round can be {finished[0]} to {finished[-1]}.")
    for folder in (round_folder(number, "policy"), initial_policy.FOLDER, filter_prompts.FOLDER):
        condition = run.artifact(folder).condition()
        if not condition.done:
            raise UserError(
                f"'{run_dir}/{folder}' is {condition.state} ({condition.why}); run: grpo-rounds resume {run_dir}"
            )
    return number
