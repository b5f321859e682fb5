"""The ``reasoning-gym`` reward: the answer of a response, marked by its data set's own scorer."""

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.errors import NotHere
from grpo_core.rewards.extract import final_answer, last_boxed
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict
from grpo_core.rewards.workers import CheckResult, shared_pool

REASONING_GYM_VERSION = 1
"""Raised when equal responses and entries would be scored differently than before."""

NO_ANSWER = "(any answer that the scorer of its set accepts)"
"""The gold of a row whose set shows no answer: nothing that could be marked."""

_MAX_ANSWER_CHARS = 20_000
_THINKING_ENDS = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_THINKING_BEGINS = re.compile(r"<(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


class ReasoningGymConfig(BaseModel):
    """How answers to reasoning-gym's questions are marked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_seconds: float = Field(
        10.0, gt=0, le=600, description="Wall-clock limit of marking one answer; over it there is no reward."
    )
    workers: int | None = Field(None, ge=1, le=256, description="Marking processes; null: one a core, 4 at most.")
    retries: int = Field(1, ge=0, le=10, description="Further tries of a scorer that timed out or failed.")
    unparsable: Literal["zero", "mask"] = Field(
        "zero", description="A response without an answer: reward 0, or masked out of its group."
    )


def reasoning_gym_reward(config: ReasoningGymConfig) -> RewardFunction:
    """The mark that the scorer of a row's data set gives: ``ok`` for 1, ``wrong`` for less, which is paid all the same.

    A row's ``extra`` holds ``dataset``, the ``entry`` (an object, or a Python literal of one), and ``options`` where
    the set was made with any; rows of a ``reasoning-gym:`` source bring them. The answer is what stands in the last
    ``<answer>`` tag, as reasoning-gym's own examples ask for it, else the final answer that the math reward would take.

    A scorer that raises is an ``error`` and one that hangs a ``timeout``: neither is paid or zero.

    Raises:
        NotHere: reasoning-gym is not installed.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise NotHere("The reward reasoning-gym needs the package of that name; pip install reasoning-gym")
    pool = shared_pool(config.workers, config.timeout_seconds, config.retries, "reasoning-gym")

    def score(samples: Sequence[Sample]) -> list[Score]:
        scores: list[Score | None] = [None] * len(samples)
        pairs: dict[int, tuple[str, str]] = {}
        for index, sample in enumerate(samples):
            task, answer = _task(sample.extra), gym_answer(sample.response)
            if task is None:
                scores[index] = Score(Verdict.MISSING, None, detail="the row is of no reasoning-gym data set")
            elif answer is None:
                scores[index] = _score(config, CheckResult(Verdict.UNPARSABLE, "no answer found"), None)
            elif answer == NO_ANSWER:
                scores[index] = Score(Verdict.MISSING, None, detail="the set of this row shows no answer")
            elif len(answer) > _MAX_ANSWER_CHARS:
                too_long = f"the answer is longer than {_MAX_ANSWER_CHARS} characters"
                scores[index] = _score(config, CheckResult(Verdict.WRONG, too_long, value=0.0), answer)
            else:
                pairs[index] = (answer, task)
        try:
            results = pool.check(list(pairs.values()))
        finally:
            pool.forget()  # entries are long, and seldom come again
        for (index, (answer, _)), result in zip(pairs.items(), results, strict=True):
            scores[index] = _score(config, result, answer)
        return [score for score in scores if score is not None]

    return score


def gym_answer(response: str) -> str | None:
    """The answer in a response, after its reasoning: the last ``<answer>``, else its final answer; None without one."""
    *_, text = _THINKING_ENDS.split(response)
    if _THINKING_BEGINS.search(text):
        return None  # cut off while it was thinking
    if tagged := _TAGGED.findall(text):
        answer = str(tagged[-1]).strip()
        boxed = last_boxed(answer)
        is_one_box = boxed is not None and _dense(answer.strip("$")) == _dense(rf"\boxed{{{boxed}}}")
        return (boxed if is_one_box else answer) or None
    found = final_answer(text)
    return None if found is None else found.answer


def _dense(text: str) -> str:
    return "".join(text.split())


def _task(extra: Mapping[str, object]) -> str | None:
    if not extra.get("dataset") or not extra.get("entry"):
        return None
    kept = {"dataset": extra["dataset"], "options": extra.get("options") or {}, "entry": extra["entry"]}
    return json.dumps(kept, sort_keys=True)


def _score(config: ReasoningGymConfig, result: CheckResult, answer: str | None) -> Score:
    shown = None if answer is None else answer[:_MAX_ANSWER_CHARS]
    masked = result.verdict is Verdict.UNPARSABLE and config.unparsable == "mask"
    if masked or not result.verdict.is_finding:
        return Score(result.verdict, None, extracted=shown, detail=result.detail, seconds=result.seconds)
    mark = result.value or 0.0
    return Score(result.verdict, mark, {"mark": mark}, shown, result.detail, result.seconds)
