"""What a verifier found, and what a reward function takes and gives."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Verdict(StrEnum):
    """The finding of a verifier about one response. A reward is computed from it, never the other way round."""

    OK = "ok"  #: equals the gold
    WRONG = "wrong"  #: an answer, another one
    UNPARSABLE = "unparsable"  #: no answer that can be read
    TIMEOUT = "timeout"  #: the check ran out of time: no finding about the response
    ERROR = "error"  #: the check itself failed: no finding about the response
    MISSING = "missing"  #: the check never ran (no gold, or a worker that was lost)

    @property
    def is_finding(self) -> bool:
        """Whether this says something about the response; a failure of the infrastructure does not."""
        return self in (Verdict.OK, Verdict.WRONG, Verdict.UNPARSABLE)


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to score.

    Attributes:
        extra: further columns of the row (``tests``, ``entry_point``, …).
        group: names the completions of one prompt; rewards that compare them look here. Empty: it stands alone.
        completion_tokens: length of the response, its end token included; None where it is only text.
        max_new_tokens: the length at which generation was cut off; None where that is not known.
        prompt_ids: the prompt as the policy saw it, by the run's own tokenizer; empty where it is only text.
        completion_ids: the response in the same ids.
        source: the label of the data source that its prompt is of; empty outside a run.
    """

    id: str
    response: str
    gold: str
    prompt: str = ""
    finish_reason: str = "stop"
    extra: Mapping[str, object] = field(default_factory=dict)
    group: str = ""
    completion_tokens: int | None = None
    max_new_tokens: int | None = None
    prompt_ids: Sequence[int] = ()
    completion_ids: Sequence[int] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome for one sample.

    ``reward`` is None when the verdict is no finding, or unparsable where the config masks that: such a rollout is
    masked out of its group. A component that is masked is None as well. ``seconds`` is wall-clock time and is never
    written to a digested file.
    """

    verdict: Verdict
    reward: float | None
    components: Mapping[str, float | None] = field(default_factory=dict)
    extracted: str | None = None
    detail: str = ""
    seconds: float = 0.0


RewardFunction = Callable[[Sequence[Sample]], Sequence[Score]]
"""Scores samples, in order, one score each."""


def sound(score: Score) -> Score:
    """The score with nothing in it that could reach an advantage by mistake.

    A verdict that is no finding pays nothing, not even zero; a reward that is not finite, or that is absent from ``ok``
    or ``wrong``, is an ``error`` of the reward; a component that is not finite is masked.
    """
    components = {
        name: value if value is None or math.isfinite(value) else None for name, value in score.components.items()
    }
    if not score.verdict.is_finding:
        return replace(score, reward=None, components=components)
    if score.reward is None:
        if score.verdict is Verdict.UNPARSABLE:
            return replace(score, components=components)
        return replace(score, verdict=Verdict.ERROR, components=components, detail="the reward is None")
    if not math.isfinite(score.reward):
        return Score(Verdict.ERROR, None, {}, score.extracted, f"the reward is {score.reward}", score.seconds)
    return replace(score, components=components)
