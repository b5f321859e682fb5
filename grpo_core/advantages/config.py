"""Which advantage estimator a run uses, and the options that this estimator reads."""

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Estimator = Literal[
    "group",
    "centred",
    "batch",
    "rloo",
    "reinforce_pp_baseline",
    "gdpo",
    "pass_at_k",
    "opo",
    "maxrl",
    "rank",
    "tiers",
    "adaptive_tiers",
]

READS: dict[Estimator, tuple[str, ...]] = {
    "group": ("epsilon", "ddof"),
    "centred": (),
    "batch": ("epsilon", "ddof"),
    "rloo": (),
    "reinforce_pp_baseline": ("epsilon", "ddof"),
    "gdpo": ("epsilon", "ddof", "component_weights"),
    "pass_at_k": ("pass_k",),
    "opo": (),
    "maxrl": (),
    "rank": ("rank_form",),
    "tiers": ("rank_form", "tier_schedule", "tier_labels"),
    "adaptive_tiers": ("rank_form", "tier_schedule", "tier_labels", "prior_decay", "prior_range", "prior_bins"),
}
"""The options that each estimator reads; a stage's fingerprint holds these and no others."""

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Label = tuple[_Finite, Annotated[int, Field(ge=0)]]
_Change = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=2, le=100)]]


class AdvantageConfig(BaseModel):
    """How a rollout's reward becomes its advantage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    estimator: Estimator = Field(
        "group",
        description="What a reward is compared with, and how: group, centred, batch, rloo, reinforce_pp_baseline, "
        "gdpo, pass_at_k, opo, maxrl, rank, tiers or adaptive_tiers; docs/algorithms.md has the formulas.",
    )
    epsilon: float = Field(1e-4, gt=0, allow_inf_nan=False, description="Added to a std before the division by it.")
    ddof: Literal[0, 1] = Field(1, description="1: std of a sample (divide by n - 1); 0: of a population (by n).")
    component_weights: dict[str, _Finite] = Field(
        default_factory=dict,
        description="gdpo: weights of the reward's components by name, those left out weigh nothing; empty: 1 each.",
    )
    pass_k: int = Field(4, ge=2, description="pass_at_k: how many tries count as one; generation.group_size at most.")
    rank_form: Literal["centred", "unit"] = Field(
        "centred", description="rank and tiers. unit: from 0 to 1, no rollout is pushed down; centred: less the mean."
    )
    tier_schedule: tuple[_Change, ...] = Field(
        ((1, 3),), description="tiers: pairs of a round and the number of tiers from it on; the first is round 1."
    )
    tier_labels: tuple[_Label, ...] = Field(
        (),
        description="tiers: what people say of rollouts that they looked at, as pairs of a reward and its tier, 0 the "
        "lowest; boundaries move as little as needed to agree.",
    )
    prior_decay: float = Field(
        0.9, ge=0, lt=1, allow_inf_nan=False, description="adaptive_tiers: what a round leaves of the prior before it."
    )
    prior_range: tuple[_Finite, _Finite] = Field(
        (-1.0, 2.0),
        description="adaptive_tiers: rewards at the prior's first and last bin, which take those beyond, too.",
    )
    prior_bins: int = Field(301, ge=2, le=100_000, description="adaptive_tiers: bins of the prior, evenly spaced.")

    @field_validator("tier_schedule")
    @classmethod
    def _rounds_rise_from_one(cls, schedule: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        rounds = [number for number, _ in schedule]
        if not rounds or rounds[0] != 1 or any(a >= b for a, b in pairwise(rounds)):
            raise ValueError("the rounds must start at 1 and rise, as in [[1, 3], [200, 4]]")
        return schedule

    @field_validator("prior_range")
    @classmethod
    def _range_rises(cls, bounds: tuple[float, float]) -> tuple[float, float]:
        if not bounds[0] < bounds[1]:
            raise ValueError("the first reward must lie below the second, as in [-1.0, 2.0]")
        return bounds

    @field_validator("*")
    @classmethod
    def _is_read(cls, value: Any, info: ValidationInfo) -> Any:
        estimator, name = info.data.get("estimator"), str(info.field_name)
        if estimator is None or name in READS[estimator]:
            return value
        if value != cls.model_fields[name].get_default(call_default_factory=True):
            readers = ", ".join(other for other, options in READS.items() if name in options)
            raise ValueError(f"estimator {estimator} does not read it; leave it out or choose one of {readers}")
        return value

    def read_options(self) -> dict[str, Any]:
        """The estimator and the options that it reads, as plain values."""
        return self.model_dump(mode="json", include={"estimator", *READS[self.estimator]})

    def tiers_in(self, round_number: int) -> int:
        """How many tiers a round has by ``tier_schedule``."""
        return [count for start, count in self.tier_schedule if start <= round_number][-1]
