"""Where people's labels come from, and what they change: the config section ``labels``."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class LabelsConfig(BaseModel):
    """What people say of rollouts in MLflow, and what it changes; docs/people.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Literal["mlflow", "off"] = Field(
        "mlflow", description="Where a round's first stage gets people's labels from; off: nobody is asked."
    )
    needed: bool = Field(
        False, description="Stop the run when MLflow can't be asked; else it goes on with the labels known before."
    )
    newest_traces: int = Field(
        1200,
        ge=1,
        description="How many of the run's newest traces are looked through each round; older ones keep the labels "
        "that they had by then.",
    )
    verdicts: Literal["override", "ignore"] = Field(
        "override", description="A person's verdict goes before the check's, for equal answers to the same prompt."
    )
    golds: Literal["override", "ignore"] = Field(
        "override", description="A person's gold goes before the data's, from the next round on."
    )
    tiers: Literal["move", "ignore"] = Field(
        "move", description="People's tiers move boundaries as advantage.tier_labels do; read by estimators with tiers."
    )
    pays_ok: float = Field(
        1.0,
        allow_inf_nan=False,
        description="What the reward that gives the verdict pays where a person turned it to ok; math has its own.",
    )
    pays_wrong: float = Field(
        0.0, allow_inf_nan=False, description="The same for wrong and unparsable; math has its own."
    )

    @field_validator("source", mode="before")
    @classmethod
    def _off_is_a_word(cls, source: Any) -> Any:
        return "off" if source is False else source  # YAML reads a bare off as false
