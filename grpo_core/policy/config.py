"""What the update is told, and the one way in which it refuses; light to import, for it is part of every config."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_core.policy.lora_config import LoraConfig
from grpo_core.policy.ppo_config import PPOConfig

_Beta = Annotated[float, Field(ge=0, lt=1)]
_CPU_TOKENS, _GPU_TOKENS = 1024, 8192  # of a micro-batch
_Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False)]

KlEstimator = Literal["k1", "k2", "k3"]


class ClipSchedule(BaseModel):
    """Clip widths that start elsewhere and move linearly to clip_low and clip_high; null: constant."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low_start: float | None = Field(None, gt=0, le=1, description="clip_low at the start; null: as at the end.")
    high_start: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="clip_high at the start; null: as at the end."
    )
    over: int = Field(
        100, ge=1, description="How many rounds or optimiser steps the way takes; the one after them is at its end."
    )
    unit: Literal["rounds", "steps"] = Field("rounds", description="rounds, or optimiser steps over all rounds.")

    def widths(self, low: float, high: float, *, round_number: int, step: int) -> tuple[float, float]:
        """Clip widths at a place of the run.

        Args:
            low, high: at the end of the way.
            round_number: from 1.
            step: optimiser steps done before, over all rounds.
        """
        done = min(1.0, (round_number - 1 if self.unit == "rounds" else step) / self.over)
        return (
            low if self.low_start is None else self.low_start + (low - self.low_start) * done,
            high if self.high_start is None else self.high_start + (high - self.high_start) * done,
        )


class ImportanceConfig(BaseModel):
    """Correction for a sampler whose logprobs differ from the trainer's; needs old_logprobs: trainer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    correction: Literal["none", "truncate", "mask"] = Field(
        "none",
        description="What happens to trainer / sampler ratios outside [low, high]: held at the bound (TIS), or their "
        "tokens leave the policy loss (masked IS, IcePop). none: no correction.",
    )
    level: Literal["token", "sequence"] = Field(
        "token", description="A ratio per token, or their product over the sequence at each of its tokens."
    )
    low: float = Field(0.0, ge=0, allow_inf_nan=False, description="Least ratio; IcePop uses 0.5.")
    high: float = Field(2.0, gt=0, allow_inf_nan=False, description="Largest ratio; IcePop uses 5.")

    @model_validator(mode="after")
    def _is_a_band(self) -> "ImportanceConfig":
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} must be less than high {self.high:g}")
        return self


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
    ratio_level: Literal["token", "sequence", "sequence_token"] = Field(
        "token",
        description="Policy over old policy: per token, or the geometric mean over the sequence (GSPO); "
        "sequence_token: its value with each token's own gradient (GSPO-token).",
    )
    clip: Literal["ppo", "cispo", "sapo", "none"] = Field(
        "ppo",
        description="How far ratios count: ppo, no further than the bounds; cispo, held at the bounds as constant "
        "weights; sapo, through a soft gate; none, without bounds.",
    )
    clip_low: float = Field(0.2, gt=0, le=1, description="The ratio counts down to 1 - clip_low.")
    clip_high: float = Field(
        0.2, gt=0, allow_inf_nan=False, description="The ratio counts up to 1 + clip_high; DAPO uses 0.28."
    )
    clip_schedule: ClipSchedule = Field(default_factory=ClipSchedule)
    dual_clip: float | None = Field(
        None,
        gt=1,
        allow_inf_nan=False,
        description="ppo only: a punished token's ratio counts up to so much, usually 3; null: without a bound.",
    )
    sapo_temperatures: tuple[_Temperature, _Temperature] = Field(
        (1.0, 1.05), description="sapo only: of the gates of rewarded and of punished tokens; larger is narrower."
    )
    aggregation: Literal["token", "sequence", "constant"] = Field(
        "token",
        description="A step's loss is its sum over tokens / tokens (DAPO), the mean over sequences of means in each "
        "(GRPO), or the sum / (constant_length * sequences) (Dr. GRPO).",
    )
    constant_length: int | None = Field(
        None, ge=1, description="constant only: the divisor of a sequence; null: generation.max_new_tokens."
    )
    kl_coef: float = Field(
        0.04, ge=0, allow_inf_nan=False, description="Weight of the KL to the reference policy; 0 needs no reference."
    )
    kl_estimator: KlEstimator = Field("k3", description="Estimate of the KL per token (Schulman 2020).")
    kl_in: Literal["loss", "reward"] = Field(
        "loss", description="A term of the loss, or off each sequence's reward, in units of the advantage."
    )
    kl_bias_correction: bool = Field(
        False, description="The KL in the loss times the token's ratio, so that its gradient is the KL's own."
    )
    entropy_coef: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Weight of the entropy bonus, aggregated as the loss is."
    )
    top_entropy: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Only this share of a step's tokens, those of highest entropy before the round's first step, "
        "counts in the policy loss; below 1 it takes one more forward pass a round unless old_logprobs is trainer.",
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
        "where it should; 0: none. Changes no update, but what gates.direction sees.",
    )
    tokens_per_microbatch: int | None = Field(
        None,
        ge=1,
        description="Tokens, padding included, of one forward and backward pass; bounds the memory only. "
        f"null: {_CPU_TOKENS} on a CPU, which is as fast with few, {_GPU_TOKENS} on a GPU.",
    )
    old_logprobs: Literal["sampler", "trainer"] = Field(
        "sampler", description="Where the ratio's denominator comes from: the sampler, or recomputed before step one."
    )
    importance: ImportanceConfig = Field(default_factory=ImportanceConfig)
    ppo: PPOConfig = Field(default_factory=PPOConfig)
    ranks: int = Field(
        1,
        ge=1,
        description="Processes that share the update, one a GPU; each holds its part of weights and moments. Changes "
        "no result but by the rounding of sums.",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="True: activations inside decoder layers are computed again in the backward pass instead of held. "
        "Changes no result.",
    )
    lora: LoraConfig | None = Field(None, description="Train adapters of low rank; null: all weights.")

    def microbatch_tokens(self, device: str) -> int:
        """Tokens of a micro-batch on a kind of device, as torch names it."""
        return self.tokens_per_microbatch or (_CPU_TOKENS if device == "cpu" else _GPU_TOKENS)

    @model_validator(mode="after")
    def _fits_together(self) -> "UpdateConfig":
        schedule = self.clip_schedule
        if self.dual_clip is not None and self.clip != "ppo":
            raise ValueError(f"dual_clip bounds the ratio of clip ppo, not of {self.clip}; set dual_clip to null")
        if (schedule.low_start or schedule.high_start) and self.clip in ("sapo", "none"):
            raise ValueError(f"clip_schedule has no bounds to move with clip {self.clip}; leave out its starts")
        if self.constant_length is not None and self.aggregation != "constant":
            raise ValueError(f"constant_length is no divisor of aggregation {self.aggregation}; set it to null")
        if self.kl_bias_correction and self.kl_in == "reward":
            raise ValueError("kl_bias_correction weighs a KL in the loss; set kl_in to loss, or leave it out")
        if self.importance.correction != "none" and self.old_logprobs == "sampler":
            raise ValueError(
                "importance corrects the trainer's old logprobs for the sampler's; set old_logprobs to trainer, or "
                "importance.correction to none (with the sampler's, the ratio itself corrects)"
            )
        return self


class NonFiniteUpdate(RuntimeError):
    """A loss or gradient norm is NaN or infinite. Raised before that optimiser step changes any parameter."""
