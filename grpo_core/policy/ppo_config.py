"""What the PPO part of the objective is told; light to import, for it is part of every config."""

from pydantic import BaseModel, ConfigDict, Field


class PPOConfig(BaseModel):
    """loss = alpha * GRPO + (1 - alpha) * PPO with a value head; alpha 1 is GRPO alone and has no value head."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alpha_start: float = Field(1.0, ge=0, le=1, allow_inf_nan=False, description="Alpha of round 1; 0 is pure PPO.")
    alpha_end: float = Field(
        1.0, ge=0, le=1, allow_inf_nan=False, description="Alpha of round alpha_rounds and of all after it."
    )
    alpha_rounds: int = Field(100, ge=2, description="Alpha goes from start to end in equal steps over so many rounds.")
    gamma: float = Field(1.0, gt=0, le=1, allow_inf_nan=False, description="Discount a token.")
    gae_lambda: float = Field(
        0.95,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="GAE's lambda: 1 waits for the reward, 0 trusts the values; long completions need it near 1.",
    )
    whiten: bool = Field(
        True, description="Shift and scale GAE's advantages to mean 0 and variance 1 over the tokens of a round."
    )
    value_clip: float | None = Field(
        0.2,
        gt=0,
        allow_inf_nan=False,
        description="A value counts as at most so far from the round's first one, in units of reward; null: no bound.",
    )
    value_coef: float = Field(
        0.1, gt=0, allow_inf_nan=False, description="Weight of the value loss beside PPO's policy loss."
    )
    value_learning_rate: float = Field(
        1e-4, gt=0, allow_inf_nan=False, description="AdamW's step size of the value head; warm-up as the policy's."
    )
    trunk_gradient: bool = Field(
        True, description="True: the value loss trains the policy's layers too; false: it trains the head alone."
    )

    @property
    def mixes(self) -> bool:
        """Whether PPO has any weight in any round."""
        return min(self.alpha_start, self.alpha_end) < 1

    def alpha(self, round_number: int) -> float:
        """GRPO's weight in a round (the first is 1): linear from start to end, then constant."""
        if round_number >= self.alpha_rounds:
            return self.alpha_end
        share = (round_number - 1) / (self.alpha_rounds - 1)
        alpha = self.alpha_start + share * (self.alpha_end - self.alpha_start)  # exact where both ends are equal
        return min(max(alpha, min(self.alpha_start, self.alpha_end)), max(self.alpha_start, self.alpha_end))
