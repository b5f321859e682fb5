"""One reward of several: the rows of a source that has a reward of its own go to that one, all others to the run's."""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from grpo_core.rewards.reward import Reward
from grpo_core.rewards.verdict import Sample, Score


def by_source(own: Reward, others: Mapping[str, tuple[str, Reward]]) -> Reward:
    """A reward that sends each sample to the reward of its ``source``.

    The components of another reward are recorded as ``code_correct`` and the like, apart from those of the run's own:
    what is smoothed or weighted over a round must hold one kind of value.

    Args:
        own: scores the samples of every source that ``others`` does not name.
        others: by the label of a source, the name and the function of its reward.
    """

    def score(samples: Sequence[Sample]) -> Sequence[Score]:
        scores: list[Score | None] = [None] * len(samples)
        sources = dict.fromkeys(sample.source if sample.source in others else None for sample in samples)
        for source in sources:
            places = [n for n, s in enumerate(samples) if (s.source if s.source in others else None) == source]
            name, reward = ("", own) if source is None else others[source]
            for place, found in zip(places, reward([samples[n] for n in places]), strict=True):
                scores[place] = found if source is None else _named(found, name)
        return [found for found in scores if found is not None]

    def close() -> None:
        with ExitStack() as stack:
            for reward in (own, *(reward for _, reward in others.values())):
                stack.callback(reward.close)

    return Reward(score, close) if others else own


def _named(score: Score, reward: str) -> Score:
    prefix = re.sub(r"\W+", "_", reward.lower())
    return replace(score, components={f"{prefix}_{name}": value for name, value in score.components.items()})
