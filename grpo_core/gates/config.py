"""The thresholds, with their defaults, and the actions; docs/diagnostics.md names the source of each number."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

GateName = Literal[
    "clip_ratio",
    "kl",
    "kl_old",
    "entropy",
    "grad_norm",
    "drift",
    "effective_sample_size",
    "direction",
    "zero_variance",
    "truncated",
    "unchecked",
    "accuracy_drop",
]
Action = Literal["warn", "lower_lr", "raise_kl", "stop"]

_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1)]


class GatesConfig(BaseModel):
    """Vital signs of a round that call for something before the next update; a threshold of null turns its gate off."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    clip_ratio: _Share | None = Field(0.3, description="Bad above: share of tokens held at a bound, last round.")
    kl: _Amount | None = Field(1.0, description="Bad above: KL to the reference in nats a token, last round.")
    kl_old: _Amount | None = Field(
        0.1, description="Bad above: KL to the policy that generated, in nats a token, last round."
    )
    entropy: _Share | None = Field(0.1, description="Bad below: last round's entropy as a share of the first round's.")
    grad_norm: _Amount | None = Field(
        5.0, description="Bad above: last round's gradient norm over the median of the rounds before it."
    )
    drift: _Amount | None = Field(
        0.05, description="Bad above: mean distance of the sampler's and the trainer's logprobs in nats, last round."
    )
    effective_sample_size: _Share | None = Field(
        0.5, description="Bad below: effective share of the tokens under their importance ratios, last round."
    )
    direction: float | None = Field(
        0.0, allow_inf_nan=False, description="Bad below: signed change of logprobs by the last round's update."
    )
    zero_variance: _Share | None = Field(0.8, description="Bad above: share of this round's groups that teach nothing.")
    truncated: _Share | None = Field(0.5, description="Bad above: share of this round's rollouts that were cut off.")
    unchecked: _Share | None = Field(0.1, description="Bad above: share of this round's rollouts without a verdict.")
    accuracy_drop: _Share | None = Field(
        0.1, description="Bad above: fall of the held-out accuracy from the best of the evaluations looked back on."
    )
    actions: dict[GateName, Action] = Field(
        default_factory=dict,
        description="By gate: warn, lower_lr, raise_kl (unless the held-out accuracy rises) or stop. Others warn.",
    )
    lr_factor: float = Field(0.5, gt=0, lt=1, description="lower_lr multiplies the learning rate by this, for good.")
    lr_floor: float = Field(0.1, gt=0, le=1, description="It never goes below this share of update.learning_rate.")
    kl_factor: float = Field(
        1.5, gt=1, allow_inf_nan=False, description="raise_kl multiplies the KL coefficient by this, for good."
    )
    kl_cap: float = Field(
        10.0, ge=1, allow_inf_nan=False, description="It never goes above this many times update.kl_coef."
    )
    accuracy_margin: _Share = Field(
        0.0, description="The held-out accuracy rises when it exceeds that of the evaluation before by more than this."
    )
    window: int = Field(10, ge=3, description="Rounds, and evaluations, that a value is compared with.")
