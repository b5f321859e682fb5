"""The section ``data.filters``: which rows that could be read are refused all the same."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

KeepOrDrop = Literal["keep", "drop"]
LanguageCode = Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]


class FiltersConfig(BaseModel):
    """What is refused besides rows without a prompt or a gold, doubled ones and those over data.max_prompt_tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    language: LanguageCode | list[LanguageCode] | None = Field(
        None,
        description="ISO 639 code of the language that prompts are written in (en), or several; a prompt is refused "
        "only on clear evidence of another one; null: any.",
    )
    near_duplicates: float | None = Field(
        0.8,
        ge=0.5,
        le=1,
        description="Jaccard similarity of words and pairs of words from which two prompts of equal numbers, formulas "
        "and golds are one problem; the later is refused; null: off.",
    )
    contamination: float | None = Field(
        0.7,
        gt=0,
        le=1,
        description="Share of its word n-grams from which a training prompt counts as a copy of an evaluation prompt, "
        "and is refused; null: only equal prompts.",
    )
    contamination_ngram: int = Field(8, ge=3, le=50, description="Words and numbers in one n-gram of that comparison.")
    proofs: KeepOrDrop = Field("keep", description="Problems that ask for a proof alone, whose gold can't be compared.")
    multiple_choice: KeepOrDrop = Field("keep", description="Problems with lettered choices, which can be guessed.")
    gold_check: Literal["auto", "off"] = Field(
        "auto",
        description="auto: the reward that will use a gold must accept it as an answer, and accept the row's own "
        "worked solution; only for rewards that compare with a gold (math, code, reasoning-gym).",
    )

    @property
    def languages(self) -> frozenset[str] | None:
        """The allowed languages; None: any."""
        if self.language is None:
            return None
        return frozenset([self.language] if isinstance(self.language, str) else self.language)
