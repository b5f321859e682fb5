"""From a comparison to a decision: one pure function, so that a round done again decides the same."""

from dataclasses import dataclass
from typing import Literal

from grpo_core.promotion.bootstrap import Comparison
from grpo_core.promotion.config import PromotionConfig

Outcome = Literal["first", "promoted", "refused"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the candidate becomes the champion. ``is_worse``: it is worse beyond noise, by the same confidence."""

    outcome: Outcome
    is_worse: bool
    reason: str

    @property
    def promotes(self) -> bool:
        return self.outcome != "refused"


def first() -> Decision:
    """The first policy that is evaluated has nobody to beat."""
    return Decision("first", False, "the first policy that was evaluated")


def cannot_tell(why: str) -> Decision:
    """Without a comparison the champion stays."""
    return Decision("refused", False, why)


def decide(config: PromotionConfig, found: Comparison | None, champion: int) -> Decision:
    """Promote the candidate when it is the better in enough resamples.

    Args:
        found: None when the two have no prompt in common for which both have a finding.
        champion: the champion's round, for the reason.
    """
    if found is None:
        return cannot_tell(f"no held-out prompt tells of both this policy and that of round {champion}, the champion")
    promotes = found.better >= config.confidence
    bar = f" by more than {config.min_gain:g}" if config.min_gain else ""
    reason = (
        f"{config.score} {found.candidate_score:.1%} against {found.champion_score:.1%} of round {champion}, the "
        f"champion, on {found.prompts} prompts: {found.difference:+.1%} ({found.low:+.1%} to {found.high:+.1%}), a gain"
        f"{bar} in {found.better:.1%} of the resamples; promotion.confidence is {config.confidence:g}"
    )
    return Decision("promoted" if promotes else "refused", found.worse >= config.confidence, reason)
