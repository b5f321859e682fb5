"""Which reward scores a response, and how: the config section ``reward``."""

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class ComponentConfig(BaseModel):
    """One dimension of a reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: str = Field(
        min_length=1, description="A built-in reward, a name of an entry point, or package.module:function of your own."
    )
    weight: float = Field(
        1.0, allow_inf_nan=False, description="Its share in the sum; 0 records it without rewarding it."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="What this reward alone takes; docs/rewards.md lists it."
    )


class RewardConfig(BaseModel):
    """Which reward scores a response, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        "math",
        min_length=1,
        description="A built-in reward, a name of an entry point, or package.module:function of your own; not read "
        "where components are given.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="What that reward alone takes; docs/rewards.md lists it."
    )
    components: dict[str, ComponentConfig] = Field(
        default_factory=dict,
        description="Several dimensions instead of one name: NAME: {reward: ..., weight: ..., options: {...}}.",
    )
    combine: Literal["sum", "gdpo"] = Field(
        "sum",
        description="How components become one reward: their weighted sum, or each normalised inside its group first.",
    )
    verdict_from: str | None = Field(
        None,
        description="The component whose verdict is the rollout's, from which accuracy is counted; null: the first.",
    )
    smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Decay of a running mean and variance of each component over the rounds, by which it is centred "
        "and scaled before weighting; 0: off.",
    )
    retries: int = Field(1, ge=0, le=10, description="Further tries of a check that timed out or failed.")
    max_unchecked: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Largest share of a round's rollouts whose check failed; above it the run stops.",
    )
    correct: float = Field(1.0, allow_inf_nan=False, description="math: paid for an answer equal to the gold.")
    box_bonus: float = Field(
        0.1,
        allow_inf_nan=False,
        description="math: paid on top, right or wrong, for a readable answer in a filled box.",
    )
    timeout_seconds: float = Field(
        2.0, gt=0, le=600, description="math: wall-clock limit of one check of one answer; over it there is no reward."
    )
    workers: int | None = Field(
        None, ge=1, le=256, description="math: checking processes; null: one a core, 4 at most."
    )
    unparsable: Literal["zero", "mask"] = Field(
        "zero", description="math: a response without a readable answer gets reward 0, or is masked out of its group."
    )

    @field_validator("components")
    @classmethod
    def _are_named(cls, components: dict[str, ComponentConfig]) -> dict[str, ComponentConfig]:
        for name in components:
            if not _NAME.fullmatch(name):
                raise ValueError(f"the name {name!r} must be small letters, digits and _; metrics are named after it")
        if components and not any(component.weight for component in components.values()):
            raise ValueError("every weight is 0; give one component a weight")
        return components

    @model_validator(mode="after")
    def _fits_together(self) -> "RewardConfig":
        if self.components and self.options:
            raise ValueError("options belong to the one reward that name gives; write them inside each component")
        if self.verdict_from is not None and self.verdict_from not in self.components:
            raise ValueError(f"verdict_from names {self.verdict_from!r}, which is not among components")
        if self.combine == "gdpo" and not self.components:
            raise ValueError("combine: gdpo needs components to normalise")
        if self.smoothing and not self.components:
            raise ValueError(
                "smoothing works on components; write the reward as one, {components: {NAME: {reward: ...}}}"
            )
        if self.smoothing and self.combine == "gdpo":
            raise ValueError("smoothing changes nothing under combine: gdpo, which centres and scales every group anew")
        return self

    @property
    def verdict_component(self) -> str:
        """The component whose verdict is the rollout's. Needs components."""
        return self.verdict_from or next(iter(self.components))
