"""The ``facts`` reward: how far a response agrees with a given reference."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict
from grpo_core.rewards.words import words

FACTS_VERSION = 1


class FactsConfig(BaseModel):
    """Options of ``facts``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str | None = Field(
        None, min_length=1, description="Column of the row that holds the reference; null: the gold."
    )
    measure: Literal["found", "f1", "mean"] = Field(
        "mean", description="Share of the references found, token-F1 against all of them, or the mean of both."
    )


def facts_reward(config: FactsConfig) -> RewardFunction:
    """Agreement with the references, in [0, 1]; ``ok`` where every one of them is found.

    The reference text is a JSON list of strings, or one statement a line. found: the share of statements whose words
    stand in the response, in a row. F1 (Rajpurkar et al. 2016, SQuAD): with m the words in common, counted with
    repetition, 2 m / (words of the response + words of all references). Case and punctuation don't count. Found alone
    is earned by a response that says everything; F1 makes saying everything expensive.
    """

    def score_one(sample: Sample) -> Score:
        text = sample.gold if config.column is None else sample.extra.get(config.column, "")
        references = [found for found in map(words, _statements(text)) if found]
        if not references:
            what = "gold" if config.column is None else f"column {config.column!r}"
            return Score(Verdict.MISSING, None, detail=f"there is no reference in the {what}")
        said = words(sample.response)
        found = sum(_stands_in(reference, said) for reference in references) / len(references)
        f1 = token_f1(said, [word for reference in references for word in reference])
        value = {"found": found, "f1": f1, "mean": (found + f1) / 2}[config.measure]
        return Score(Verdict.OK if found == 1 else Verdict.WRONG, value, {"found": found, "f1": f1})

    def score(samples: Sequence[Sample]) -> list[Score]:
        return [score_one(sample) for sample in samples]

    return score


def token_f1(said: Sequence[str], reference: Sequence[str]) -> float:
    """2 m / (len(said) + len(reference)), m the size of the bags' intersection; 0 where both are empty."""
    common = sum((Counter(said) & Counter(reference)).values())
    return 2 * common / (len(said) + len(reference)) if common else 0.0


def _statements(text: object) -> list[str]:
    if isinstance(text, (list, tuple)):
        return [str(item) for item in text]
    try:
        listed = json.loads(str(text))
    except ValueError:
        listed = None
    if isinstance(listed, list):
        return [str(item) for item in listed]
    return [line for line in str(text).splitlines() if line.strip()]


def _stands_in(part: Sequence[str], whole: Sequence[str]) -> bool:
    return any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))
