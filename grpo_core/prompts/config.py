"""The ``data`` section of a config: where prompts come from, what is kept, held out, and taken in a round."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from grpo_core.prompts.filters_config import FiltersConfig
from grpo_core.prompts.gold import GoldFormat
from grpo_core.prompts.known import CODE_ADAPTERS, REASONING_GYM, Adapter, adapter_of
from grpo_core.prompts.plan_config import Curriculum, DifficultyConfig, DynamicSamplingConfig

PROMPT_COLUMNS = ("question", "problem", "prompt", "instruction", "query")
GOLD_COLUMNS = ("answer", "gold", "final_answer", "solution", "target")
REASONING_GYM_ROWS = 1000

Operand = Annotated[int, Field(ge=-(10**9), le=10**9)]


class AdditionsConfig(BaseModel):
    """Sums of two whole numbers, for `source: additions`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(512, ge=1, description="How many different sums are made.")
    low: Operand = Field(0, description="Smallest operand.")
    high: Operand = Field(30, description="Largest operand, included.")

    @model_validator(mode="after")
    def _enough_pairs(self) -> "AdditionsConfig":
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) must not be below low ({self.low})")
        if self.count > self.pairs:
            raise ValueError(
                f"count is {self.count}, but {self.low}..{self.high} gives only {self.pairs} different sums; "
                "lower count or widen the range"
            )
        return self

    @property
    def pairs(self) -> int:
        """How many ordered pairs of operands the range holds."""
        return (self.high - self.low + 1) ** 2


class SourceKeys(BaseModel):
    """Where rows come from, and which of their columns are what: the keys of one source."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(
        "additions",
        min_length=1,
        description="gsm8k, math, humaneval or mbpp (known data sets of the hub), additions, reasoning-gym:NAME "
        "(pip install reasoning-gym), a local .jsonl, .json, .parquet or .csv file, a folder of such files, or a data "
        "set of the Hugging Face hub (openai/gsm8k).",
    )
    adapter: Adapter | None = Field(
        None,
        description="How rows are read: as gsm8k, math, humaneval or mbpp have them, or plain, by the columns below; "
        "null: as its name or hub id says for these four, else plain.",
    )
    subset: str | None = Field(
        None,
        min_length=1,
        description="Configuration of a hub data set (main for openai/gsm8k); null, where gsm8k, math, humaneval or "
        "mbpp is the source: main, all seven, the only one, sanitized.",
    )
    split: str = Field(
        "train", min_length=1, description="Split of a hub data set; a slice such as train[:1000] works."
    )
    prompt_column: str = Field(
        "auto",
        min_length=1,
        description=f"Column of the question; auto takes the first there is of {', '.join(PROMPT_COLUMNS)}.",
    )
    gold_column: str = Field(
        "auto",
        min_length=1,
        description=f"Column of the gold answer; auto takes the first there is of {', '.join(GOLD_COLUMNS)}.",
    )
    gold_format: GoldFormat = Field(
        "auto",
        description="How the gold stands in its column: plain, gsm8k (after ####), boxed (the last filled \\boxed{}), "
        "or auto, which decides row by row in the order gsm8k, boxed, plain; for code and reasoning-gym plain unless "
        "said otherwise.",
    )
    solution_column: str | None = Field(
        None, min_length=1, description="Column of a worked solution, against which the gold is checked; none."
    )
    order_column: str | None = Field(
        None,
        min_length=1,
        description="Column that data.curriculum: column sorts by; a number, or text with one in it.",
    )
    extra_columns: list[str] = Field(
        default_factory=list,
        description="Further columns for the reward to read; tests, entry_point and mode need no mention.",
    )
    limit: int | None = Field(
        None,
        ge=1,
        description=f"Read at most so many rows; for reasoning-gym how many to make ({REASONING_GYM_ROWS}).",
    )
    additions: AdditionsConfig = Field(default_factory=AdditionsConfig)
    options: dict[str, Any] = Field(
        default_factory=dict, description="reasoning-gym: what the set itself takes, such as {max_terms: 4}."
    )

    @model_validator(mode="before")
    @classmethod
    def _gold_is_whole(cls, values: Any) -> Any:
        # A program or a board may well hold a #### or a box, which is no mark of an answer there.
        if isinstance(values, dict) and values.get("gold_format") is None:
            source, adapter = values.get("source"), values.get("adapter")
            if isinstance(source, str) and (
                source.startswith(REASONING_GYM) or adapter_of(source, adapter) in CODE_ADAPTERS
            ):
                return {**values, "gold_format": "plain"}
        return values

    @property
    def reads_as(self) -> Adapter:
        """The adapter by which its rows are read."""
        return adapter_of(self.source, self.adapter)


class SourceConfig(SourceKeys):
    """One source of a mix."""

    name: str | None = Field(
        None, min_length=1, max_length=100, description="What tables and MLflow call it; null: its source."
    )
    reward: str | None = Field(
        None,
        min_length=1,
        description="The reward of its rows, by name (code, math, reasoning-gym, package.module:function); null: the "
        "run's own, or where that is one that can't judge them code for humaneval and mbpp, and reasoning-gym.",
    )
    reward_options: dict[str, Any] = Field(
        default_factory=dict, description="What that reward takes, as reward.options of a run; needs reward."
    )
    weight: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Its share of a round's prompts, against the others' weights; null for all: by rows.",
    )
    from_round: int | None = Field(
        None,
        ge=1,
        description="The first round that may take its prompts; null: the first, or for a source that is added to a "
        "run the next one that is not planned yet.",
    )

    @model_validator(mode="after")
    def _options_have_a_reward(self) -> "SourceConfig":
        if self.reward_options and self.reward is None:
            raise ValueError("reward_options needs reward, the name of the one that takes them")
        return self

    @property
    def label(self) -> str:
        """What its rows are filed under."""
        return self.name or self.source


class DataConfig(SourceKeys):
    """Which prompts; what is kept, held out and taken in a round."""

    sources: list[SourceConfig] = Field(
        default_factory=list, description="A mix of sources, each with the keys above; instead of source."
    )
    eval_sources: list[SourceConfig] = Field(
        default_factory=list, description="Held-out sets of their own, besides data.eval_size of the training rows."
    )
    prompt_template: str = Field(
        "{prompt}", description="The user's turn, with {prompt} for the question; write any other brace twice: {{ }}."
    )
    system_prompt: str | None = Field(None, min_length=1, description="The system's turn; none by default.")
    chat_template: bool = Field(
        True, description="Apply the tokenizer's chat template where it has one; false gives the model bare text."
    )
    max_prompt_tokens: int = Field(512, ge=1, description="Prompts of more tokens, template included, are rejected.")
    eval_size: int = Field(
        64, ge=0, description="Training rows held out for evaluation; 0 is allowed where eval_sources are given."
    )
    filters: FiltersConfig = Field(default_factory=FiltersConfig)
    prompts_per_round: int = Field(16, ge=1, description="Prompts a round takes, without replacement within an epoch.")
    curriculum: Curriculum = Field(
        "shuffle",
        description="Order of an epoch: shuffle, pass_rate (what is solved most often comes first), or column (by each "
        "source's order_column, smallest first).",
    )
    difficulty: DifficultyConfig = Field(default_factory=DifficultyConfig)
    dynamic_sampling: DynamicSamplingConfig = Field(default_factory=DynamicSamplingConfig)

    @property
    def mix(self) -> list[SourceConfig]:
        """The sources of training rows: ``sources``, or the one whose keys stand in the section itself."""
        if self.sources:
            return self.sources
        return [SourceConfig(**{key: getattr(self, key) for key in SourceKeys.model_fields})]

    @property
    def places(self) -> dict[str, SourceConfig]:
        """Every source, of training and of held-out rows, by where its keys stand in the config."""
        found = {f"data.sources.{n}": source for n, source in enumerate(self.sources)} or {"data": self.mix[0]}
        return found | {f"data.eval_sources.{n}": source for n, source in enumerate(self.eval_sources)}

    @field_validator("prompt_template")
    @classmethod
    def _has_prompt(cls, template: str) -> str:
        try:
            filled = [template.format(prompt=mark) for mark in ("\x00", "\x01")]
        except (ValueError, LookupError, AttributeError) as error:
            raise ValueError("only {prompt} may stand in braces; write any other brace twice, {{ or }}") from error
        if "\x00" not in filled[0] or filled[0].replace("\x00", "\x01") != filled[1]:
            raise ValueError("it must contain {prompt}, where the question goes")
        return template

    @model_validator(mode="after")
    def _one_way_to_name_sources(self) -> "DataConfig":
        if self.sources:
            doubled = [
                key
                for key, field in SourceKeys.model_fields.items()
                if getattr(self, key) != field.get_default(call_default_factory=True)
            ]
            if doubled:
                raise ValueError(f"{doubled[0]} belongs into the entries of sources, when there are any")
        labels = [source.label for source in (*self.mix, *self.eval_sources)]
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            raise ValueError(f"two sources are called {twice!r}; give each a name of its own")
        for place, source in enumerate(self.eval_sources):
            if source.weight is not None or source.from_round is not None:
                raise ValueError(f"eval_sources.{place} has a weight or a from_round; no round takes held-out prompts")
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and not all(weighted):
            raise ValueError("either all sources have a weight or none; give the others one, too")
        if all((source.from_round or 1) > 1 for source in self.mix):
            raise ValueError("no source has prompts for the first round; leave from_round out of one of them")
        if not self.eval_size and not self.eval_sources:
            raise ValueError("eval_size can't be 0 without eval_sources; hold some prompts out")
        return self
