"""The ``format`` reward: does a response have the form that was asked for?"""

import re
from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from grpo_core.rewards.extract import final_answer
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict

FORMAT_VERSION = 1
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


class FormatConfig(BaseModel):
    """Options of ``format``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    style: Literal["box", "tags", "pattern"] = Field(
        "box",
        description="box: the last answer stands in a filled \\boxed{}; tags: <think>..</think><answer>..</answer> and "
        "nothing else; pattern: your own.",
    )
    pattern: str | None = Field(
        None, description="For style pattern: a Python regex that the whole response must match."
    )

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"it is not a regular expression ({error})") from error
        return pattern

    @model_validator(mode="after")
    def _pattern_when_asked(self) -> "FormatConfig":
        if (self.style == "pattern") != (self.pattern is not None):
            raise ValueError("pattern goes with style: pattern, and only with it")
        return self


def format_reward(config: FormatConfig) -> RewardFunction:
    """R = 1 where the response has the form, else 0. What the answer is plays no part."""
    fits: Callable[[str], bool]
    if config.style == "box":
        fits = _ends_in_box
    elif config.style == "tags":
        fits = _is_tagged
    else:
        pattern = re.compile(config.pattern or "", re.DOTALL)
        fits = lambda text: pattern.fullmatch(text) is not None  # noqa: E731

    def score(samples: Sequence[Sample]) -> list[Score]:
        found = [fits(sample.response) for sample in samples]
        return [Score(Verdict.OK if fit else Verdict.WRONG, float(fit), {"format": float(fit)}) for fit in found]

    return score


def _ends_in_box(text: str) -> bool:
    found = final_answer(text)
    return found is not None and found.boxed


def _is_tagged(text: str) -> bool:
    """Each tag once and in order, something between each pair, only blanks outside. Linear in the text's length."""
    places = [text.find(tag) for tag in _TAGS]
    if any(text.count(tag) != 1 for tag in _TAGS) or places != sorted(places):
        return False
    ends = [place + len(tag) for place, tag in zip(places, _TAGS, strict=True)]
    outside = text[: places[0]] + text[ends[1] : places[2]] + text[ends[3] :]
    thought, answer = text[ends[0] : places[1]], text[ends[2] : places[3]]
    return not outside.strip() and bool(thought.strip()) and bool(answer.strip())
