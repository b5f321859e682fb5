"""The ``diversity`` reward: how unlike the other responses of its group a response is."""

from collections import defaultdict
from collections.abc import Hashable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict
from grpo_core.rewards.words import ngrams, words

DIVERSITY_VERSION = 1


class DiversityConfig(BaseModel):
    """Options of ``diversity``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int = Field(2, ge=1, description="Length of the runs of words that are compared.")


def diversity_reward(config: DiversityConfig) -> RewardFunction:
    """R_i = 1 - mean over the others j of the group of |A_i & A_j| / |A_i | A_j|, A being the set of word n-grams.

    A response that another one of its group repeats word for word scores 0, whatever the rest; one that stands alone
    scores 1. Needs whole groups.
    """

    def score(samples: Sequence[Sample]) -> list[Score]:
        groups: dict[str, list[int]] = defaultdict(list)
        for index, sample in enumerate(samples):
            groups[sample.group or f"\0{index}"].append(index)
        values = [1.0] * len(samples)
        for indices in groups.values():
            for index, value in zip(
                indices, distinctness([samples[i].response for i in indices], config.n), strict=True
            ):
                values[index] = value
        return [Score(Verdict.OK if value > 0 else Verdict.WRONG, value, {"diversity": value}) for value in values]

    return score


def distinctness(texts: Sequence[str], n: int) -> list[float]:
    """The formula of :func:`diversity_reward` for the texts of one group, each in [0, 1]."""
    said = [words(text) for text in texts]
    grams = [frozenset[tuple[Hashable, ...]](ngrams(one, n)) for one in said]
    values = []
    for i in range(len(texts)):
        others = [j for j in range(len(texts)) if j != i]
        if any(said[j] == said[i] for j in others):
            values.append(0.0)
        else:
            alike = [len(grams[i] & grams[j]) / len(grams[i] | grams[j]) for j in others]
            values.append(1.0 - sum(alike) / len(alike) if alike else 1.0)
    return values
