"""Which rollouts and groups of a round to show: chosen by what they are, ties by a hash, never by chance or place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest

from grpo_core.report.rows import Row
from grpo_core.seeding import hash64

Order = Callable[[str], tuple[int, str]]
"""Sorts ids: the same order every time, spread over a round."""


def hash_order(*parts: int | str) -> Order:
    """The order of ids by ``hash64(*parts, id)``."""
    return lambda identity: (hash64(*parts, identity), identity)


def covering_groups(
    prompts: Sequence[str], verdicts: Sequence[str], rewards: Sequence[float | None], order: Order
) -> list[str]:
    """All prompts of a round, in the order in which to show them.

    First come groups that hold the greatest reward, the least, and each verdict that occurs, the rarest verdict first;
    then the others by hash. So whatever is cut off the end, something of each kind is left.

    Args:
        prompts, verdicts, rewards: one entry a rollout.
    """
    ordered = sorted(set(prompts), key=order)
    valid = [reward for reward in rewards if reward is not None]
    wanted: list[set[str]] = []
    if valid:
        for extreme in (max(valid), min(valid)):
            wanted.append({prompt for prompt, reward in zip(prompts, rewards, strict=True) if reward == extreme})
    for verdict in sorted(set(verdicts), key=lambda one: (sum(other == one for other in verdicts), one)):
        wanted.append({prompt for prompt, found in zip(prompts, verdicts, strict=True) if found == verdict})
    first: dict[str, None] = {}
    for prompts_of_a_kind in wanted:
        if not prompts_of_a_kind & first.keys():
            first[next(prompt for prompt in ordered if prompt in prompts_of_a_kind)] = None
    return [*first, *(prompt for prompt in ordered if prompt not in first)]


def worth_labelling(rows: Sequence[Row], count: int, order: Order) -> list[Row]:
    """``count`` rollouts (all, where there are fewer) of every kind that a round has, one of each kind in turn.

    Kinds: each verdict, the best and the worst rewards, answers over whose components the group disagrees, cut off
    ones, and whatever else there is.
    """
    mixed = sorted(rows, key=lambda row: order(row.rollout_id))
    valid = [row for row in mixed if row.reward is not None]
    by_reward = sorted(valid, key=lambda row: row.reward or 0.0)
    verdicts = sorted({row.verdict for row in rows})
    kinds: list[Iterable[Row]] = [
        *([row for row in mixed if row.verdict == verdict] for verdict in verdicts),
        sorted(valid, key=lambda row: -(row.reward or 0.0)),
        by_reward,
        [row for row, _ in disagreements(mixed)],
        [row for row in mixed if row.finish_reason == "length"],
        mixed,
    ]
    chosen: dict[str, Row] = {}
    for turn in zip_longest(*kinds):
        for row in turn:
            if row is not None and len(chosen) < count:
                chosen.setdefault(row.rollout_id, row)
    return list(chosen.values())


def best_and_worst(rows: Sequence[Row], order: Order) -> tuple[Row, Row]:
    """The rollouts of a group with the greatest and the least reward; those without a reward come in between.

    Ties go by advantage, then by hash, so that the two differ in a group of two or more.
    """
    ranked = sorted(
        rows, key=lambda row: (row.reward is None, -(row.reward or 0.0), -row.advantage, order(row.rollout_id))
    )
    rewarded = [row for row in ranked if row.reward is not None]
    return ranked[0], rewarded[-1] if len(rewarded) > 1 else ranked[-1]


def disagreements(rows: Sequence[Row]) -> list[tuple[Row, dict[str, float]]]:
    """Rollouts that one component puts above their group and another below it, the most contradictory first.

    A component's say is (r - mean) / (max - min) over the group's valid values, 0 where they are all equal; between -1
    and 1. How contradictory: the smaller of the greatest say above and the greatest say below 0.

    Returns:
        each such rollout with what every component says.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.prompt_id, []).append(row)
    spread = {prompt_id: _spread(group) for prompt_id, group in groups.items()}
    found = []
    for row in rows:
        says = {
            name: round((value - spread[row.prompt_id][name][0]) / spread[row.prompt_id][name][1], 9)
            for name, value in sorted(row.components.items())
            if value is not None and spread[row.prompt_id][name][1] > 0
        }
        if says and min(says.values()) < 0 < max(says.values()):
            found.append((row, says))
    return sorted(found, key=lambda pair: (-min(max(pair[1].values()), -min(pair[1].values())), pair[0].rollout_id))


def _spread(group: Sequence[Row]) -> Mapping[str, tuple[float, float]]:
    """Mean and range of every component of a group."""
    names = sorted({name for row in group for name in row.components})
    found = {}
    for name in names:
        values = [value for row in group if (value := row.components.get(name)) is not None]
        found[name] = (sum(values) / len(values), max(values) - min(values)) if values else (0.0, 0.0)
    return found
