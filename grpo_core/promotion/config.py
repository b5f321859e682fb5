"""What a policy must show before it becomes the champion, and what a refusal means for the next round."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ScoreName = Literal["accuracy", "avg_at_k"]


class PromotionConfig(BaseModel):
    """Which evaluated policy is the champion of a run, and how MLflow's model registry holds it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(True, description="Compare each evaluated policy with the champion and register it.")
    score: ScoreName = Field(
        "accuracy",
        description="What is compared on held-out prompts: accuracy (greedy) or avg_at_k (evaluation.samples of them).",
    )
    confidence: float = Field(
        0.95, gt=0.5, lt=1, description="Share of bootstrap resamples in which the candidate must be the better."
    )
    resamples: int = Field(10_000, ge=100, le=1_000_000, description="Bootstrap resamples of the held-out prompts.")
    min_gain: float = Field(
        0.0, ge=0, lt=1, description="The candidate counts as better only above this difference of scores."
    )
    go_back: Literal["never", "when_worse", "when_refused"] = Field(
        "never",
        description="The next round starts from the champion: never, when the candidate is worse beyond noise, or "
        "whenever it is refused.",
    )
    model: str | None = Field(
        None,
        pattern=r"^[\w.-]+$",
        description="Registered model in MLflow that takes the versions; default: the run's name.",
    )
    upload: bool = Field(
        False, description="Upload each version's weights into MLflow; false: the version points to the run folder."
    )
