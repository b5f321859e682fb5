"""Which reward scores a response, and how: the config section ``reward``."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RewardConfig(BaseModel):
    """Which reward scores a response, and how. All but ``name`` belongs to the built-in rewards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("math", min_length=1, description="A built-in reward, or package.module:function of your own.")
    correct: float = Field(1.0, allow_inf_nan=False, description="Paid for an answer equal to the gold.")
    box_bonus: float = Field(
        0.1, allow_inf_nan=False, description="Paid on top, right or wrong, for a readable answer in a filled box."
    )
    timeout_seconds: float = Field(
        2.0, gt=0, le=600, description="Wall-clock limit of one check of one answer; over it there is no reward."
    )
    retries: int = Field(1, ge=0, le=10, description="Further tries of a check that timed out or failed.")
    workers: int | None = Field(None, ge=1, le=256, description="Checking processes; null: one a core, 4 at most.")
    unparsable: Literal["zero", "mask"] = Field(
        "zero", description="A response without a readable answer: reward 0, or masked out of its group."
    )
