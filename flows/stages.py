"""Which stages a round has, in order, and how they stand on disk."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grpo_core.artifacts import Condition
from tasks import (
    apply_gates,
    compute_advantages,
    evaluate_policy,
    filter_prompts,
    generate_rollouts,
    initial_policy,
    plan_round,
    promote_policy,
    pull_labels,
    sample_groups,
    score_rewards,
    track_difficulty,
    update_policy,
)
from tasks.pools import joining_rounds
from tasks.run import Run
from tasks.stage import InputMissing, Stage

_EVALUATE = (evaluate_policy.evaluate_policy, evaluate_policy.STAGE)
_FILTER = (filter_prompts.filter_prompts, filter_prompts.STAGE)
_START = ((initial_policy.initial_policy, initial_policy.STAGE), _FILTER)
_GENERATE = (generate_rollouts.generate_rollouts, generate_rollouts.STAGE)
_SCORE = (score_rewards.score_rewards, score_rewards.STAGE)
_TOGETHER = (sample_groups.sample_groups, sample_groups.STAGE)
_PROMOTE = (promote_policy.promote_policy, promote_policy.STAGE)
_ROUND = (
    (pull_labels.pull_labels, pull_labels.STAGE),
    (plan_round.plan_round, plan_round.STAGE),
    _GENERATE,
    _SCORE,
    (track_difficulty.track_difficulty, track_difficulty.STAGE),
    (compute_advantages.compute_advantages, compute_advantages.STAGE),
    (apply_gates.apply_gates, apply_gates.STAGE),
    (update_policy.update_policy, update_policy.STAGE),
)


def stages_of(run: Run, round_number: int) -> list[tuple[Any, Stage]]:
    """Prefect tasks and stages of a round, in order.

    Round 0 brings the starting policy and the prompts; a round from which a further source may be taken, its prompts.
    """
    joins = round_number > 1 and round_number in joining_rounds(run.config.data)
    stages = [*([_FILTER] if joins else ()), *(_ROUND if round_number else _START)]
    branch = run.branch
    if sample_groups.is_on(run) and branch is None:
        stages = [_TOGETHER if pair is _GENERATE else pair for pair in stages if pair is not _SCORE]
    if evaluate_policy.is_due(run, round_number):
        stages.append(_EVALUATE)
    if promote_policy.is_due(run, round_number):
        stages.append(_PROMOTE)
    return [(task, stage) for task, stage in stages if branch is None or branch.makes(stage.name, round_number)]


@dataclass(frozen=True, slots=True)
class StageStatus:
    """How one stage of one round stands, and why."""

    round: int
    stage: str
    condition: Condition


def examine(run: Run, round_number: int) -> Iterator[StageStatus]:
    """Prove every artifact of a round, stage by stage."""
    for _, stage in stages_of(run, round_number):
        try:
            condition = stage.condition(run, round_number, stage.fingerprint(run, round_number))
        except InputMissing as missing:
            condition = Condition("missing", f"waits for {missing}")
        yield StageStatus(round_number, stage.name, condition)


def is_complete(run: Run, round_number: int) -> bool:
    return all(status.condition.done for status in examine(run, round_number))


def first_incomplete(run: Run) -> int:
    """The round to go on with: the first that lacks anything; ``run.config.rounds + 1`` when all is done."""
    for number in range(run.config.rounds + 1):
        if not is_complete(run, number):
            return number
    return run.config.rounds + 1
