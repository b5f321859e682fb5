"""The ``math`` reward: is the final answer of a response equal to the gold?"""

import time
from collections.abc import Sequence

from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.extract import final_answer
from grpo_core.rewards.math import MAX_ANSWER_CHARS, quick_check
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict
from grpo_core.rewards.workers import shared_pool


def math_reward(config: RewardConfig) -> RewardFunction:
    """``correct`` for an answer equal to the gold, ``box_bonus`` for a readable one in a box; see ``Verdict``.

    Its worker processes are shared by all rewards of equal settings, stay warm, and end with the interpreter.
    """
    pool = shared_pool(config.workers, config.timeout_seconds, config.retries)

    def score(samples: Sequence[Sample]) -> list[Score]:
        scores: list[Score | None] = [None] * len(samples)
        boxed = [False] * len(samples)
        pairs: dict[int, tuple[str, str]] = {}
        for index, sample in enumerate(samples):
            started = time.perf_counter()
            if not sample.gold.strip():
                scores[index] = Score(Verdict.MISSING, None, detail="there is no gold")
                continue
            found = final_answer(sample.response)
            if found is None:
                scores[index] = _score(config, Verdict.UNPARSABLE, "no answer found", None, False, started)
                continue
            boxed[index] = found.boxed
            quick = quick_check(found.answer, sample.gold)
            if quick is None:
                pairs[index] = (found.answer, sample.gold)
            else:
                scores[index] = _score(config, *quick, found.answer, found.boxed, started)
        results = pool.check(list(pairs.values())) if pairs else []
        for (index, (answer, _)), result in zip(pairs.items(), results, strict=True):
            started = time.perf_counter() - result.seconds
            scores[index] = _score(config, result.verdict, result.detail, answer, boxed[index], started)
        return [score for score in scores if score is not None]

    return score


def _score(
    config: RewardConfig, verdict: Verdict, detail: str, answer: str | None, boxed: bool, started: float
) -> Score:
    seconds = time.perf_counter() - started
    extracted = None if answer is None else answer[:MAX_ANSWER_CHARS]
    components = payment(config, verdict, boxed)
    if components is None:
        return Score(verdict, None, extracted=extracted, detail=detail, seconds=seconds)
    return Score(verdict, sum(components.values()), components, extracted, detail, seconds)


def payment(config: RewardConfig, verdict: Verdict, boxed: bool) -> dict[str, float] | None:
    """What a verdict on an answer, in a box or not, is paid for; None where it is masked."""
    if not verdict.is_finding or (verdict is Verdict.UNPARSABLE and config.unparsable == "mask"):
        return None
    return {
        "correct": config.correct if verdict is Verdict.OK else 0.0,
        "box": config.box_bonus if boxed and verdict is not Verdict.UNPARSABLE else 0.0,
    }
