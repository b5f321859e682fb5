"""Where prompts come from: made-up additions, reasoning-gym, a local file, or a data set of the Hugging Face hub."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from grpo_core.errors import UserError
from grpo_core.prompts.config import (
    GOLD_COLUMNS,
    PROMPT_COLUMNS,
    REASONING_GYM_ROWS,
    AdditionsConfig,
    SourceKeys,
)
from grpo_core.prompts.readers import FILE_SUFFIXES, read_file, read_named
from grpo_core.seeding import hash64

_REASONING_GYM = "reasoning-gym:"
_HUB_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
# A column may be absent from some rows of a JSONL file; this many are looked at before it counts as missing.
_ROWS_FOR_COLUMNS = 100


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row as the source holds it: its index from 0, and raw cells.

    Attributes:
        solution: a worked solution, with which the gold must agree.
        extra: what the row's reward needs besides (``tests``, ``entry_point``, …); plain JSON values.
        order: what a curriculum by column sorts by.
    """

    index: int
    prompt: object
    gold: object
    solution: object = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    order: object = None


def load_rows(config: SourceKeys, seed: int) -> Iterator[SourceRow]:
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
        rows = _reasoning_gym(config.source.removeprefix(_REASONING_GYM), config.limit or REASONING_GYM_ROWS, seed)
    else:
        rows = _stored(config)
    yield from _select(islice(rows, config.limit), config)


def _refuse_hub_keys(config: SourceKeys) -> None:
    for key, unset in (("subset", None), ("split", "train")):
        if getattr(config, key) != unset:
            raise UserError(
                f"data.{key} is '{getattr(config, key)}', but data.source '{config.source}' has no {key}s; "
                "leave it out."
            )


def _stored(config: SourceKeys) -> Iterator[Mapping[str, Any]]:
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


def _select(rows: Iterator[Mapping[str, Any]], config: SourceKeys) -> Iterator[SourceRow]:
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
