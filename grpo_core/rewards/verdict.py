"""What a verifier found, and what a reward function takes and gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """One response to score. ``extra`` holds further columns of the row (``tests``, ``entry_point``, …)."""

    id: str
    response: str
    gold: str
    prompt: str = ""
    finish_reason: str = "stop"
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome for one sample.

    ``reward`` is None when the verdict is no finding, or unparsable where the config masks that: such a rollout is
    masked out of its group. ``seconds`` is wall-clock time and is never written to a digested file.
    """

    verdict: Verdict
    reward: float | None
    components: Mapping[str, float] = field(default_factory=dict)
    extracted: str | None = None
    detail: str = ""
    seconds: float = 0.0


RewardFunction = Callable[[Sequence[Sample]], Sequence[Score]]
"""Scores samples, in order, one score each."""
