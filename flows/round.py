"""One round: rollouts from the policy of the round before, their rewards and advantages, then the next policy."""

from prefect import flow

from flows.stages import stages_of
from flows.stopping import polite_stop
from grpo_core import interrupt
from grpo_core.artifacts import Artifact
from tasks import update_policy
from tasks.run import Run, open_run
from tasks.stage import Stage, run_stage
from tasks.start_policy import start_of


@flow(name="round", flow_run_name="round-{round_number:04d}")
def run_round(run_dir: str, round_number: int) -> None:
    """Do what is missing of a round; stages whose artifacts lie on disk show as Cached.

    The caller holds the run's lock. Round 0 brings the starting policy, the prompts and the first evaluation.
    """
    run = open_run(run_dir)
    with polite_stop():
        for task, stage in stages_of(run, round_number):
            run_stage(task, stage, run, round_number, prepare=bring_back_models)
            interrupt.safe_point()


def bring_back_models(stage: Stage, run: Run, round_number: int) -> None:
    """Make the retired models that a stage takes again, from the stored rollouts and advantages of their own rounds.

    Only a stage that has to run asks for them: one of an old round whose files were harmed, say. On a CPU they get the
    same bytes; where they don't, the stages after find that by their fingerprints.
    """
    update = update_policy.STAGE
    number, needed = round_number, stage.models(run, round_number)
    lacking: list[int] = []  # rounds, each the start of the one before it in this list
    while any(run.artifact(folder).is_retired for folder in needed):
        number = start_of(run, number)
        lacking.append(number)
        needed = update.models(run, number)
    made_before: list[Artifact] = []
    for number in reversed(lacking):
        made = [model for folder in update.folders(number).values() if (model := run.artifact(folder)).is_retired]
        for model in made:
            model.forget()
        run_stage(update_policy.update_policy, update, run, number, prepare=_nothing_to_prepare)
        for model in made_before:  # on the way only two rounds' models lie there
            model.retire()
        made_before = made


def _nothing_to_prepare(stage: Stage, run: Run, round_number: int) -> None:
    """What it takes was made in the round before."""
