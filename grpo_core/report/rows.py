"""One rollout with all that the tables say of it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A rollout of a round.

    Attributes:
        components: raw values by name; None where masked.
        reward: None: not a reward.
        length: of the completion in tokens.
    """

    rollout_id: str
    prompt_id: str
    verdict: str
    extracted: str | None
    gold: str
    components: Mapping[str, float | None]
    reward: float | None
    detail: str
    advantage: float
    in_loss: bool
    text: str
    finish_reason: str
    length: int
