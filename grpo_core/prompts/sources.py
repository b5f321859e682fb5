"""Where prompts come from: made-up additions, reasoning-gym, a local file, or a data set of the Hugging Face hub."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from grpo_core.errors import UserError
from grpo_core.prompts.adapters import read_rows
from grpo_core.prompts.config import SourceKeys
from grpo_core.prompts.generated import additions, reasoning_gym
from grpo_core.prompts.known import KNOWN, REASONING_GYM
from grpo_core.prompts.readers import FILE_SUFFIXES, read_file, read_named
from grpo_core.prompts.rows import SourceRow

__all__ = ["SourceRow", "hub_parts", "load_rows", "local_path"]

_HUB_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_KEY = re.compile(rf"(?<![\w./'-])data\.(?={'|'.join(SourceKeys.model_fields)})")


def load_rows(config: SourceKeys, seed: int, where: str = "data") -> Iterator[SourceRow]:
    """The rows of ``config.source`` in the source's own order, at most ``config.limit`` of them.

    What is read is the same on every call; ``seed`` (the run's) decides only what the procedural sources make.

    Args:
        where: the place of the source's keys in the config, for errors: ``data``, or ``data.sources.2``.

    Raises:
        UserError: on the first ``next()`` when the source can't be had or has no such column, later when a row can't be
            read; the sentence names the key or the file.
    """
    try:
        yield from _rows(config, seed)
    except UserError as error:
        if where == "data":
            raise
        raise type(error)(_KEY.sub(f"{where}.", str(error))) from error


def local_path(source: str) -> Path | None:
    """The file or folder that a source names; None for one that is made, or that the hub has."""
    if source in ("additions", *KNOWN) or source.startswith(REASONING_GYM):
        return None
    path = Path(source).expanduser()
    return path if path.suffix in FILE_SUFFIXES or path.is_dir() else None


def hub_parts(config: SourceKeys) -> list[tuple[str, str | None, str]]:
    """Id, subset and split of each part of a hub data set, which are read one after the other.

    Raises:
        UserError: it can be no id of the hub, or a slice of a split would be cut from several subsets.
    """
    known = next((known for name, known in KNOWN.items() if name == config.source), None)
    if known is not None:
        split = known.split if config.split == "train" else config.split
        subsets = known.subsets if config.subset is None else (config.subset,)
        if len(subsets) > 1 and "[" in split:
            raise UserError(
                f"data.split '{split}' would be cut from each of the {len(subsets)} subsets of '{config.source}'; "
                "set data.subset to one of them, or cut by data.limit."
            )
        return [(known.hub_id, subset, split) for subset in subsets]
    if Path(config.source).expanduser().exists() or not _HUB_ID.fullmatch(config.source):
        raise UserError(
            f"data.source '{config.source}' is no file that can be read; give a file that ends with "
            f"{', '.join(FILE_SUFFIXES)}, a hub id such as openai/gsm8k, {', '.join(KNOWN)}, additions or "
            f"{REASONING_GYM}NAME."
        )
    return [(config.source, config.subset, config.split)]


def _rows(config: SourceKeys, seed: int) -> Iterator[SourceRow]:
    made = config.source.startswith(REASONING_GYM)
    if config.options and not made:
        raise UserError(f"data.options belongs to {REASONING_GYM}NAME, not to '{config.source}'; leave it out.")
    if not made:
        yield from read_rows(islice(_stored(config, seed), config.limit), config)
        return
    _refuse_hub_keys(config)
    if config.adapter is not None:
        raise UserError(f"data.adapter is '{config.adapter}', but '{config.source}' has rows of its own; leave it out.")
    yield from reasoning_gym(config, seed)


def _stored(config: SourceKeys, seed: int) -> Iterator[Mapping[str, Any]]:
    if config.source == "additions":
        _refuse_hub_keys(config)
        return additions(config.additions, seed)
    path = local_path(config.source)
    if path is None:
        return chain.from_iterable(
            read_named(name, subset, split, on_hub=True) for name, subset, split in hub_parts(config)
        )
    if path.suffix in FILE_SUFFIXES:
        _refuse_hub_keys(config)
        return read_file(path)
    return read_named(str(path), config.subset, config.split, on_hub=False)


def _refuse_hub_keys(config: SourceKeys) -> None:
    for key, unset in (("subset", None), ("split", "train")):
        if getattr(config, key) != unset:
            raise UserError(
                f"data.{key} is '{getattr(config, key)}', but data.source '{config.source}' has no {key}s; "
                "leave it out."
            )
