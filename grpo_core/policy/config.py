"""What the update is told, and the one way in which it refuses; light to import, for it is part of every config."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

_Beta = Annotated[float, Field(ge=0, lt=1)]


class UpdateConfig(BaseModel):
    """How rollouts and advantages change the policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(1e-6, gt=0, allow_inf_nan=False, description="AdamW's step size after the warm-up.")
    betas: tuple[_Beta, _Beta] = Field((0.9, 0.999), description="AdamW's decay rates of the two moments.")
    adam_epsilon: float = Field(1e-8, gt=0, allow_inf_nan=False, description="AdamW's epsilon.")
    weight_decay: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Decoupled decay of weight matrices; biases and norms have none."
    )
    warmup_steps: int = Field(0, ge=0, description="Optimiser steps, over all rounds, of a linear rise from zero.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients of a larger global norm are scaled down to it.")
    epochs: int = Field(1, ge=1, description="Passes over the rollouts of a round.")
    minibatches: int = Field(1, ge=1, description="Optimiser steps an epoch; each takes whole groups.")
    clip_low: float = Field(0.2, gt=0, le=1, description="The ratio counts down to 1 - clip_low.")
    clip_high: float = Field(
        0.2, gt=0, allow_inf_nan=False, description="The ratio counts up to 1 + clip_high; DAPO uses 0.28."
    )
    kl_coef: float = Field(
        0.04, ge=0, allow_inf_nan=False, description="Weight of the KL to the reference policy; 0 needs no reference."
    )
    mask_truncated: bool = Field(
        False, description="True: completions cut off at max_new_tokens leave the loss and its denominator."
    )
    checkpoint_steps: int = Field(
        10, ge=0, description="Optimiser steps between checkpoints inside a round's update; 0: none. Changes no result."
    )
    direction_groups: int = Field(
        16,
        ge=0,
        description="Groups whose logprobs are computed once more after the update, to see whether it went "
        "where it should; 0: none. Changes no result.",
    )
    tokens_per_microbatch: int = Field(
        8192, ge=1, description="Tokens, padding included, of one forward and backward pass; bounds the memory only."
    )
    old_logprobs: Literal["sampler", "trainer"] = Field(
        "sampler", description="Where the ratio's denominator comes from: the sampler, or recomputed before step one."
    )


class NonFiniteUpdate(RuntimeError):
    """A loss or gradient norm is NaN or infinite. Raised before that optimiser step changes any parameter."""
