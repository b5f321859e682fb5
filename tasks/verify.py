"""Verification of a run: is its record true? All is recomputed or proven from what lies on disk; nothing is changed.

For each round: the bytes of every artifact and what it was made from, the tables against each other, the plan, rewards
and advantages computed again, the evaluation scored again, and MLflow's record against the disk.
"""

from collections.abc import Callable, Container, Sequence

from grpo_core.errors import UserError
from grpo_core.schemas import Progress, no_progress
from tasks.reward_tables import open_reward
from tasks.run import Run, round_folder
from tasks.stage import Stage
from tasks.verify_again import recompute, recompute_evaluation, recompute_sure, unsure_rewards
from tasks.verify_artifacts import prove_artifacts
from tasks.verify_mlflow import compare_mlflow
from tasks.verify_report import Report
from tasks.verify_tables import compare_rows, prompt_pools

StagesOf = Callable[[Run, int], Sequence[Stage]]


def verify_run(
    run: Run,
    stages_of: StagesOf,
    *,
    rounds: Container[int] | None = None,
    rewards: bool = True,
    models: bool = False,
    mlflow: bool = True,
    progress: Progress = no_progress,
) -> Report:
    """Compare a run's manifests, tables and MLflow record with what they should say.

    Args:
        stages_of: the stages of a round, in order.
        rounds: only these; None: all that lie on disk. The run's prompts are always proven.
        rewards: whether rewards and evaluations are scored again.
        models: whether that is done with judges and models, too, which cost money or time and may not repeat
            themselves.
        mlflow: whether MLflow's record is compared.

    Returns:
        The report; ``clean`` when nothing differs.

    Raises:
        UserError: none of the rounds lies on disk.
    """
    there = run.rounds_on_disk()
    # One in between that is gone altogether is looked at, too, and missed.
    numbers = [n for n in range(there[0], there[-1] + 1) if rounds is None or n in rounds] if there else []
    if not numbers:
        span = f"rounds {there[0]} to {there[-1]}" if there else "no rounds yet"
        raise UserError(f"'{run.uri}' has {span}; there is nothing to verify in the ones asked for.")
    report = Report(run.uri, numbers)
    scored = _scored_again(report, run, rewards, models)
    done, total = 0, 3 * len(numbers) + 2

    def advance() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    for pool in prompt_pools(run):
        first = int(pool.rpartition("-")[2]) if "-" in pool else 0  # the round that it joined with
        prove_artifacts(report, run, pool, first, stages_of(run, first))
    advance()
    for number in numbers:
        stages = stages_of(run, number)
        prove_artifacts(report, run, round_folder(number), number, stages)
        advance()
        if number:
            compare_rows(report, run, number)
            recompute(report, run, number, stages, scored)
            if rewards and not scored:
                recompute_sure(report, run, number)
        advance()
    _say_what_is_missing(report, run, there, stages_of)
    if scored:
        try:
            with open_reward(run, run.config.reward) as reward:
                for number in numbers:
                    recompute_evaluation(report, run, number, reward)
                    advance()
        except UserError as error:  # a reward of the user's own that isn't there, say
            report.add("evaluation", f"it can't be computed again: {error}")
    if mlflow:
        compare_mlflow(report, run, numbers)
    else:
        report.skip("MLflow's record: not compared, as asked.")
    progress(total, total)
    report.skip("Rollouts and policies are not made again: their bytes, keys, seeds and inputs are proven, no more.")
    return report


def _scored_again(report: Report, run: Run, rewards: bool, models: bool) -> bool:
    unsure = unsure_rewards(run.config.reward)
    if not rewards:
        report.skip("Rewards and evaluations: not scored again, as asked.")
    elif unsure and not models:
        report.skip(
            f"Rewards by {', '.join(unsure)}, verdicts and evaluations: not scored again, since that costs money or "
            "time and may not repeat itself; --models does it."
        )
    return rewards and (models or not unsure)


def _say_what_is_missing(report: Report, run: Run, there: Sequence[int], stages_of: StagesOf) -> None:
    """An artifact that later ones were built on must be there; one at the run's end is only unfinished."""
    places = [
        (place, stage)
        for number in range(there[0], there[-1] + 1)
        for stage in stages_of(run, number)
        for place in stage.folders(number).values()
        if stage.needed
    ]
    finished = [n for n, (place, _) in enumerate(places) if run.artifact(place).manifest() is not None]
    missing = [place for place, _ in places[: max(finished, default=0)]]
    for place in [place for place in report.unfinished if place in missing]:
        report.unfinished.remove(place)
        report.add(place, "it is missing, though later artifacts lie there")
