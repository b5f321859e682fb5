"""How hard each prompt is for the current policy: its pass rate, from its own rollouts, with its uncertainty."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from scipy.special import betaincinv

from grpo_core.prompts.plan_config import DifficultyConfig
from grpo_core.rewards.verdict import Verdict
from grpo_core.schemas import DIFFICULTY

ACTIVE, SOLVED, FAILED = "active", "solved", "failed"
"""Inside the band, above it, below it; the last two are retired."""

_PRIOR = 0.5  # of a success and of a failure: Jeffreys' prior, so that 8 of 8 is no certainty


@dataclass(frozen=True, slots=True)
class Difficulty:
    """What is known of one prompt: a row of ``schemas.DIFFICULTY``."""

    prompt_id: str
    visits: int = 0  # rounds in which it was taken
    rollouts: int = 0  # with a finding, over all visits
    solved: int = 0
    weight: float = 0.0  # of its rollouts, older visits counting less
    weight_solved: float = 0.0
    pass_rate: float = 0.5
    lower: float = 0.0
    upper: float = 1.0
    state: str = ACTIVE
    last_round: int = 0
    last_epoch: int = -1

    @property
    def is_retired(self) -> bool:
        return self.state != ACTIVE


def read_difficulty(table: pa.Table) -> dict[str, Difficulty]:
    """The rows of a table of ``schemas.DIFFICULTY`` by prompt."""
    return {row["prompt_id"]: Difficulty(**row) for row in table.to_pylist()}


def update_difficulty(
    past: Mapping[str, Difficulty],
    taken: Mapping[str, int],
    rewards: pa.Table,
    round_number: int,
    config: DifficultyConfig,
) -> pa.Table:
    """What is known after a round, of every prompt that was ever taken.

    The pass rate is the mean of a Beta posterior with Jeffreys' prior over the rollouts whose check came to a finding,
    those of earlier visits discounted by ``config.memory`` a visit. A prompt is retired when that mean leaves the band,
    and comes back when a later try brings it back in.

    Args:
        past: what was known before.
        taken: the epoch in which the round took each of its prompts, by id.
        rewards: the round's rows of ``schemas.REWARDS``.

    Returns:
        Rows of ``schemas.DIFFICULTY``, sorted by prompt.
    """
    found: dict[str, list[bool]] = defaultdict(list)
    for prompt_id, verdict in zip(rewards["prompt_id"].to_pylist(), rewards["verdict"].to_pylist(), strict=True):
        if Verdict(verdict).is_finding:
            found[prompt_id].append(verdict == Verdict.OK)
    known = dict(past)
    for prompt_id, epoch in taken.items():
        before = known.get(prompt_id, Difficulty(prompt_id))
        visited = replace(before, visits=before.visits + 1, last_round=round_number, last_epoch=epoch)
        known[prompt_id] = _with_outcomes(visited, found[prompt_id], config) if found[prompt_id] else visited
    fields = DIFFICULTY.names
    rows = [{name: getattr(known[prompt_id], name) for name in fields} for prompt_id in sorted(known)]
    return pa.Table.from_pylist(rows, schema=DIFFICULTY)


def _with_outcomes(before: Difficulty, outcomes: Sequence[bool], config: DifficultyConfig) -> Difficulty:
    weight = config.memory * before.weight + len(outcomes)
    weight_solved = config.memory * before.weight_solved + sum(outcomes)
    successes, failures = weight_solved + _PRIOR, weight - weight_solved + _PRIOR
    pass_rate = successes / (successes + failures)
    tail = (1 - config.interval) / 2
    return replace(
        before,
        rollouts=before.rollouts + len(outcomes),
        solved=before.solved + sum(outcomes),
        weight=weight,
        weight_solved=weight_solved,
        pass_rate=pass_rate,
        lower=float(betaincinv(successes, failures, tail)),
        upper=float(betaincinv(successes, failures, 1 - tail)),
        state=state_of(pass_rate, config.band),
    )


def state_of(pass_rate: float, band: tuple[float, float] | None) -> str:
    """``active`` inside the band, its ends included; else ``failed`` or ``solved``."""
    if band is None or band[0] <= pass_rate <= band[1]:
        return ACTIVE
    return FAILED if pass_rate < band[0] else SOLVED


def difficulty_metrics(table: pa.Table, before: Mapping[str, Difficulty], training_prompts: int) -> dict[str, float]:
    """How many prompts are in which state, and how many changed it in this round."""
    rows = read_difficulty(table).values()
    states = {state: float(sum(row.state == state for row in rows)) for state in (ACTIVE, SOLVED, FAILED)}
    was_retired = {row.prompt_id for row in before.values() if row.is_retired}
    retired = {row.prompt_id for row in rows if row.is_retired}
    seen = [row for row in rows if row.rollouts]
    metrics = {
        "known": float(len(rows)),
        "unknown": float(training_prompts - len(rows)),
        **states,
        "retired_now": float(len(retired - was_retired)),
        "brought_back": float(len(was_retired - retired)),
    }
    if seen:
        metrics["pass_rate_mean"] = sum(row.pass_rate for row in seen) / len(seen)
        metrics["interval_mean"] = sum(row.upper - row.lower for row in seen) / len(seen)
    return metrics
