"""Where prompts come from: made-up additions, reasoning-gym, a local file, or a data set of the Hugging Face hub."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from grpo_core.errors import UserError
from grpo_core.prompts.gold import GoldFormat
from grpo_core.prompts.readers import FILE_SUFFIXES, read_file, read_named
from grpo_core.seeding import hash64

PROMPT_COLUMNS = ("question", "problem", "prompt", "instruction", "query")
GOLD_COLUMNS = ("answer", "gold", "final_answer", "solution", "target")

_REASONING_GYM = "reasoning-gym:"
_REASONING_GYM_ROWS = 1000
_HUB_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
# A column may be absent from some rows of a JSONL file; this many are looked at before it counts as missing.
_ROWS_FOR_COLUMNS = 100

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


class DataConfig(BaseModel):
    """Which prompts, and which of their columns; what is kept, held out and taken in a round."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(
        "additions",
        min_length=1,
        description="additions, reasoning-gym:NAME (pip install reasoning-gym), a local .jsonl, .json, .parquet or "
        ".csv file, a folder of such files, or a data set of the Hugging Face hub (openai/gsm8k).",
    )
    subset: str | None = Field(
        None, min_length=1, description="Configuration of a hub data set (main for openai/gsm8k)."
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
        "or auto, which decides row by row in the order gsm8k, boxed, plain.",
    )
    prompt_template: str = Field(
        "{prompt}", description="The user's turn, with {prompt} for the question; write any other brace twice: {{ }}."
    )
    system_prompt: str | None = Field(None, min_length=1, description="The system's turn; none by default.")
    chat_template: bool = Field(
        True, description="Apply the tokenizer's chat template where it has one; false gives the model bare text."
    )
    max_prompt_tokens: int = Field(512, ge=1, description="Prompts of more tokens, template included, are rejected.")
    limit: int | None = Field(
        None,
        ge=1,
        description=f"Read at most so many rows; for reasoning-gym how many to make ({_REASONING_GYM_ROWS}).",
    )
    eval_size: int = Field(64, ge=1, description="Prompts held out for evaluation; training never sees them.")
    prompts_per_round: int = Field(16, ge=1, description="Prompts a round takes, without replacement within an epoch.")
    additions: AdditionsConfig = Field(default_factory=AdditionsConfig)

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


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row as the source holds it: its index from 0, and the raw cells of its prompt and gold columns."""

    index: int
    prompt: object
    gold: object


def load_rows(config: DataConfig, seed: int) -> Iterator[SourceRow]:
    """The rows of ``config.source`` in the source's own order, at most ``config.limit`` of them.

    A key that a row lacks reads as null. What is read is the same on every call; ``seed`` (the run's) decides only what
    the procedural sources make.

    Raises:
        UserError: on the first ``next()`` when the source can't be had or has no such column, later when a row can't be
            read; the sentence names the key or the file.
    """
    if config.source == "additions":
        _refuse_hub_keys(config)
        rows = _additions(config.additions, seed)
    elif config.source.startswith(_REASONING_GYM):
        _refuse_hub_keys(config)
        rows = _reasoning_gym(config.source.removeprefix(_REASONING_GYM), config.limit or _REASONING_GYM_ROWS, seed)
    else:
        rows = _stored(config)
    yield from _select(islice(rows, config.limit), config)


def _refuse_hub_keys(config: DataConfig) -> None:
    for key, unset in (("subset", None), ("split", "train")):
        if getattr(config, key) != unset:
            raise UserError(
                f"data.{key} is '{getattr(config, key)}', but data.source '{config.source}' has no {key}s; "
                "leave it out."
            )


def _stored(config: DataConfig) -> Iterator[Mapping[str, Any]]:
    path = Path(config.source).expanduser()
    if path.suffix in FILE_SUFFIXES:
        _refuse_hub_keys(config)
        return read_file(path)
    if path.is_dir():
        return read_named(str(path), config.subset, config.split, on_hub=False)
    if path.exists() or not _HUB_ID.fullmatch(config.source):
        raise UserError(
            f"data.source '{config.source}' is no file that can be read; give a file that ends with "
            f"{', '.join(FILE_SUFFIXES)}, a hub id such as openai/gsm8k, additions or reasoning-gym:NAME."
        )
    return read_named(config.source, config.subset, config.split, on_hub=True)


def _select(rows: Iterator[Mapping[str, Any]], config: DataConfig) -> Iterator[SourceRow]:
    first = list(islice(rows, _ROWS_FOR_COLUMNS))
    if not first:
        raise UserError(f"data.source '{config.source}' has no rows; give one that has.")
    columns = list(dict.fromkeys(column for row in first for column in row))
    prompt = _column("prompt_column", config.prompt_column, PROMPT_COLUMNS, columns, config.source)
    gold = _column("gold_column", config.gold_column, GOLD_COLUMNS, columns, config.source)
    for index, row in enumerate(chain(first, rows)):
        yield SourceRow(index, row.get(prompt), row.get(gold))


def _column(key: str, wanted: str, usual: tuple[str, ...], columns: list[str], source: str) -> str:
    candidates = usual if wanted == "auto" else (wanted,)
    for column in candidates:
        if column in columns:
            return column
    missing = f"none of the usual columns ({', '.join(usual)})" if wanted == "auto" else f"no column '{wanted}'"
    raise UserError(f"data.{key}: '{source}' has {missing}; set it to one of {', '.join(columns) or 'its columns'}.")


def _additions(config: AdditionsConfig, seed: int) -> Iterator[Mapping[str, str]]:
    """The first ``count`` of all ordered pairs in a shuffle by ``seed``; more of them extend fewer of them."""
    width = config.high - config.low + 1
    # Fisher-Yates over the numbers of the pairs, holding only the places that a swap has changed.
    moved: dict[int, int] = {}
    for place in range(config.count):
        chosen = place + hash64(seed, "additions", place) % (config.pairs - place)
        number = moved.get(chosen, chosen)
        moved[chosen] = moved.get(place, place)
        a, b = number // width + config.low, number % width + config.low
        yield {"question": f"What is {a} + {b if b >= 0 else f'({b})'}?", "answer": str(a + b)}


def _reasoning_gym(name: str, rows: int, seed: int) -> Iterator[Mapping[str, Any]]:
    """Entries of a reasoning-gym data set (Stojanovski et al. 2025, arXiv:2505.24760)."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UserError(
            f"data.source '{_REASONING_GYM}{name}' needs reasoning-gym ({error}); pip install reasoning-gym"
        ) from error
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=5) or sorted(DATASETS)[:5]
        raise UserError(
            f"data.source: reasoning-gym has no '{name}' among its {len(DATASETS)} data sets; did you mean "
            f"{', '.join(near)}?"
        )
    try:
        dataset = reasoning_gym.create_dataset(name, size=rows, seed=hash64(seed, "reasoning-gym") % 2**31)
    except (TypeError, ValueError, AssertionError, OSError) as error:
        raise UserError(
            f"data.source: reasoning-gym can't make '{name}' ({error}); take another of its sets."
        ) from error
    for entry in dataset:
        yield {"question": entry["question"], "answer": entry["answer"]}
