"""What is trained of a model with LoRA; light to import, for it is part of every config."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Name = Annotated[str, Field(min_length=1)]


class LoraConfig(BaseModel):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): W + alpha / rank * B A, of which A and B are trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(16, ge=1, description="Rows of A and columns of B.")
    alpha: float = Field(32.0, gt=0, allow_inf_nan=False, description="What B A is weighed with is alpha / rank.")
    targets: tuple[_Name, ...] | None = Field(
        None,
        min_length=1,
        description="Linear layers that get an adapter, by the end of their name, such as [q_proj, v_proj]; null: all "
        "but the output head.",
    )
