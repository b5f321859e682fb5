"""The ``length`` reward: a soft penalty for answers that come near the limit."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict

LENGTH_VERSION = 1


class LengthConfig(BaseModel):
    """Options of ``length``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int | None = Field(None, ge=1, description="L_max; null: generation.max_new_tokens.")
    cache_tokens: int | None = Field(
        None,
        ge=0,
        description="L_cache, over which the penalty grows from 0 to -1; null: a fifth of L_max, as in DAPO.",
    )


def length_reward(config: LengthConfig) -> RewardFunction:
    """Soft overlong punishment (Yu et al. 2025, DAPO, arXiv 2503.14476, equation 13), with |y| in tokens.

    R = 0 where |y| <= L_max - L_cache; ((L_max - L_cache) - |y|) / L_cache up to |y| = L_max; -1 beyond that.
    A sample whose length or limit is not known is ``missing``.
    """

    def score_one(sample: Sample) -> Score:
        longest = config.max_tokens or sample.max_new_tokens
        if sample.completion_tokens is None or longest is None:
            return Score(Verdict.MISSING, None, detail="there is no length in tokens, or no limit to it")
        cache = min(longest // 5 if config.cache_tokens is None else config.cache_tokens, longest)
        value = overlong_penalty(sample.completion_tokens, longest, cache)
        return Score(Verdict.WRONG if value < 0 else Verdict.OK, value, {"length": value})

    def score(samples: Sequence[Sample]) -> list[Score]:
        return [score_one(sample) for sample in samples]

    return score


def overlong_penalty(tokens: int, longest: int, cache: int) -> float:
    """The formula of :func:`length_reward`; all three in tokens."""
    if tokens <= longest - cache:
        return 0.0
    return -1.0 if tokens > longest else (longest - cache - tokens) / cache
