"""The ``repetition`` reward: a penalty for saying the same thing again within one response."""

from collections.abc import Hashable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict
from grpo_core.rewards.words import words

REPETITION_VERSION = 1


class RepetitionConfig(BaseModel):
    """Options of ``repetition``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int = Field(10, ge=1, description="Length of the runs of tokens that are compared.")
    penalty: float = Field(
        -1.0, le=0, allow_inf_nan=False, description="Paid for a response that is nothing but repetition."
    )


def repetition_reward(config: RepetitionConfig) -> RewardFunction:
    """R = penalty * m / T: T tokens, of which m lie in an n-gram that stood before in the same response.

    The n-gram repetition penalty of Yeo et al. 2025 (arXiv 2502.03373, appendix C.2) gives every such token a penalty;
    here a response gets the mean over its tokens. Tokens are the policy's; words where a sample is only text.
    """

    def score_one(sample: Sample) -> Score:
        value = config.penalty * repeated_share(sample.completion_ids or words(sample.response), config.n)
        return Score(Verdict.WRONG if value < 0 else Verdict.OK, value, {"repetition": value})

    def score(samples: Sequence[Sample]) -> list[Score]:
        return [score_one(sample) for sample in samples]

    return score


def repeated_share(tokens: Sequence[Hashable], n: int) -> float:
    """m / T of :func:`repetition_reward`, in [0, 1); 0 for a text of fewer than n tokens."""
    seen: set[tuple[Hashable, ...]] = set()
    marked = covered = 0  # covered: how far into the text marked tokens reach
    for start in range(len(tokens) - n + 1):
        gram = tuple(tokens[start : start + n])
        if gram in seen:
            marked += start + n - max(start, covered)
            covered = start + n
        seen.add(gram)
    return marked / len(tokens) if marked else 0.0
