"""What another reward, another estimator or another update changed, round by round, against the run branched from."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from grpo_core.schemas import ADVANTAGES, REWARDS
from tasks.run import Run, round_folder


@dataclass(frozen=True, slots=True)
class AdvantageChange:
    """Over the rollouts of both; the correlation is Pearson's, None where either does not vary."""

    sign_changed: float  # share of rollouts; 0 is a sign of its own
    correlation: float | None
    groups_live_before: int  # with a rollout in the loss
    groups_live_after: int
    became_live: int
    became_dead: int


@dataclass(frozen=True, slots=True)
class UpdateChange:
    """One round's update: the digests of its policies, and its metrics as pairs of before and after."""

    policy_before: str | None  # None: the run has not updated this round
    policy_after: str
    off_policy: bool  # the rollouts came from another policy than the one that was trained on them
    metrics: Mapping[str, tuple[float | None, float | None]]


@dataclass(frozen=True, slots=True)
class Change:
    """What changed in one round.

    ``before`` figures are None, and nothing counts as changed, where the run itself has not scored the round.
    """

    round: int
    rollouts: int
    transitions: dict[str, int]  # "wrong -> ok" and so on, changed verdicts only
    reward_mean_before: float | None
    reward_mean_after: float | None
    changed: int  # rollouts whose verdict or reward is another one
    first_changed: list[str]
    advantages: AdvantageChange | None  # None: the run has no advantages of the round
    update: UpdateChange | None  # None: the branch makes no policies


def rounds_with(run: Run, artifacts: Sequence[str]) -> list[int]:
    """Rounds in which all of these are finished, in order."""
    return [
        n
        for n in run.rounds_on_disk()
        if all(run.artifact(round_folder(n, name)).manifest() is not None for name in artifacts)
    ]


def compare(parent: Run, branch: Run, round_number: int, first: int) -> Change:
    """What a branch changed in a round that it has finished; names the ``first`` so many changed rollouts."""
    after = branch.artifact(round_folder(round_number, "rewards")).read_table(REWARDS)
    before = _table(parent, round_number, "rewards", REWARDS)
    known = {row["rollout_id"]: (row["verdict"], row["reward"]) for row in _rows(before)}
    pairs = [
        (row["rollout_id"], known[row["rollout_id"]], (row["verdict"], row["reward"]))
        for row in _rows(after)
        if row["rollout_id"] in known
    ]
    transitions = Counter(f"{old[0]} -> {new[0]}" for _, old, new in pairs if old[0] != new[0])
    changed = [identity for identity, old, new in pairs if old != new]
    advantages = _table(parent, round_number, "advantages", ADVANTAGES)
    return Change(
        round=round_number,
        rollouts=after.num_rows,
        transitions=dict(sorted(transitions.items())),
        reward_mean_before=_mean(before),
        reward_mean_after=_mean(after),
        changed=len(changed),
        first_changed=changed[:first],
        advantages=compare_advantages(advantages, _table(branch, round_number, "advantages", ADVANTAGES))
        if advantages.num_rows
        else None,
        update=_compare_updates(parent, branch, round_number) if branch.branch and branch.branch.policies else None,
    )


def compare_advantages(before: pa.Table, after: pa.Table) -> AdvantageChange:
    """Two tables of one round's advantages, rows as ADVANTAGES; their rollouts are matched by id."""
    old, new = _advantages(before), _advantages(after)
    common = sorted(old.keys() & new.keys())
    pairs = np.array([(old[name], new[name]) for name in common], dtype=np.float64).reshape(-1, 2)
    varies = len(pairs) > 1 and bool((pairs.min(axis=0) < pairs.max(axis=0)).all())
    live_before, live_after = _live(before), _live(after)
    return AdvantageChange(
        sign_changed=float((np.sign(pairs[:, 0]) != np.sign(pairs[:, 1])).mean()) if len(pairs) else 0.0,
        correlation=float(np.corrcoef(pairs[:, 0], pairs[:, 1])[0, 1]) if varies else None,
        groups_live_before=len(live_before),
        groups_live_after=len(live_after),
        became_live=len(live_after - live_before),
        became_dead=len(live_before - live_after),
    )


def metric_pairs(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, tuple[float | None, float | None]]:
    """By name, what was measured before and after; None where it was not."""
    return {name: (before.get(name), after.get(name)) for name in sorted({*before, *after})}


def _compare_updates(parent: Run, branch: Run, round_number: int) -> UpdateChange:
    folder = round_folder(round_number, "policy")
    before, after = parent.artifact(folder).manifest(), branch.artifact(folder).manifest()
    assert after is not None, "the branch has finished the round"
    # The rollouts say whose they are: not the parent's policy before, where that went back or is a branch itself.
    rollouts = parent.artifact(round_folder(round_number, "rollouts")).manifest()
    generated = rollouts.parts["inputs"].get("policy") if rollouts else None
    trained = branch.artifact(round_folder(round_number - 1, "policy")).manifest()
    return UpdateChange(
        policy_before=before.digest if before else None,
        policy_after=after.digest,
        off_policy=trained is None or generated != trained.digest,
        metrics=metric_pairs(before.metrics if before else {}, after.metrics),
    )


def _table(run: Run, round_number: int, name: str, schema: pa.Schema) -> pa.Table:
    artifact = run.artifact(round_folder(round_number, name))
    return artifact.read_table(schema) if artifact.manifest() is not None else schema.empty_table()


def _advantages(table: pa.Table) -> dict[str, float]:
    return dict(zip(table["rollout_id"].to_pylist(), table["advantage"].to_pylist(), strict=True))


def _live(table: pa.Table) -> set[str]:
    pairs = zip(table["prompt_id"].to_pylist(), table["in_loss"].to_pylist(), strict=True)
    return {prompt for prompt, in_loss in pairs if in_loss}


def _rows(table: pa.Table) -> Sequence[dict[str, Any]]:
    rows: Sequence[dict[str, Any]] = table.select(["rollout_id", "verdict", "reward"]).to_pylist()
    return rows


def _mean(table: pa.Table) -> float | None:
    valid = table["reward"].drop_null().to_pylist()
    return sum(valid) / len(valid) if valid else None
