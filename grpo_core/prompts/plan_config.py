"""How a round's prompts are chosen: by difficulty, in which order, and how many more when too many teach nothing."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Curriculum = Literal["shuffle", "pass_rate", "column"]
Share = Annotated[float, Field(ge=0, le=1)]


class DifficultyConfig(BaseModel):
    """Which prompts are worth rollouts: those that the current policy solves sometimes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    band: tuple[Share, Share] | None = Field(
        (0.1, 0.9),
        description="Prompts whose pass rate is below the first or above the second are retired; null keeps them all.",
    )
    memory: float = Field(
        0.5,
        ge=0,
        le=1,
        description="How much the rollouts of a prompt's visit before count beside those of its newest one, and so on "
        "back: the policy has changed since. 1 forgets nothing, 0 everything.",
    )
    interval: float = Field(
        0.9, gt=0, lt=1, description="Mass of the credible interval that is kept beside each pass rate."
    )
    retry_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Share of a round's prompts that are retired ones, tried again; those that wait longest first.",
    )

    @field_validator("band")
    @classmethod
    def _is_a_band(cls, band: tuple[float, float] | None) -> tuple[float, float] | None:
        if band is not None and band[0] >= band[1]:
            raise ValueError("the first number must be below the second, as in [0.1, 0.9]")
        return band


class DynamicSamplingConfig(BaseModel):
    """Further prompts for a round in which too many groups have no variance (DAPO, Yu et al. 2025)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_extra: float = Field(
        0.0,
        ge=0,
        le=100,
        description="Most prompts that a round may draw beyond data.prompts_per_round, as a multiple of it; 0: none.",
    )
    min_live: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Further prompts are drawn, generation.shard_groups at a time, until so many groups, as a share of "
        "data.prompts_per_round, have rewards that differ.",
    )
