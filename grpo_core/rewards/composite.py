"""A reward of several components: each scores on its own, then they are smoothed, normalised and summed."""

from collections.abc import Mapping, Sequence

import numpy as np

from grpo_core.rewards.combine import normalise_in_groups, total_reward
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.smoothing import State, smooth
from grpo_core.rewards.verdict import RewardFunction, Sample, Score


def composite(parts: Mapping[str, RewardFunction], config: RewardConfig, past: State) -> RewardFunction:
    """The reward function of ``config.components``, whose functions are ``parts``.

    A score's ``components`` are the raw values, None where masked. Its verdict is that of ``config.verdict_component``,
    unless a component that counts is masked: then it is that component's verdict, with its name in the detail, and
    there is no reward.
    """
    names = sorted(parts)
    weights = np.array([config.components[name].weight for name in names])
    # The component that gives the verdict counts even at weight 0: no finding means no reward.
    counting = [name for name in names if config.components[name].weight or name == config.verdict_component]

    def score(samples: Sequence[Sample]) -> list[Score]:
        found = {name: parts[name](samples) for name in parts}
        raw = [[np.nan if s.reward is None else s.reward for s in found[name]] for name in names]
        values = smooth(np.array(raw, dtype=np.float64).T.reshape(len(samples), len(names)), names, past)
        if config.combine == "gdpo":
            values = normalise_in_groups(values, group_index(samples))
        totals = total_reward(values, weights)
        return [
            _joined({name: found[name][index] for name in names}, counting, config.verdict_component, float(total))
            for index, total in enumerate(totals)
        ]

    return score


def group_index(samples: Sequence[Sample]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """A number for each sample, equal for those of one group; a sample without a group has a number to itself."""
    numbers: dict[tuple[str, int], int] = {}
    keys = [(sample.group, -1) if sample.group else ("", place) for place, sample in enumerate(samples)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _joined(found: Mapping[str, Score], counting: list[str], decisive: str, total: float) -> Score:
    components = {name: score.reward for name, score in found.items()}
    seconds = sum(score.seconds for score in found.values())
    extracted = found[decisive].extracted
    masked = next((name for name in counting if found[name].reward is None), None)
    if masked is not None:
        detail = f"{masked}: {found[masked].detail or found[masked].verdict.value}"
        return Score(found[masked].verdict, None, components, extracted, detail, seconds)
    return Score(found[decisive].verdict, total, components, extracted, found[decisive].detail, seconds)
