"""Rows of stored data sets as dictionaries, through Hugging Face `datasets`; its many errors become one sentence."""

import csv
import glob
import json
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from grpo_core.errors import NotHere, UserError

FILE_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")

_PROBE_SECONDS = 5.0
_PARQUET_ROWS = 1024  # at a time; by itself `datasets` takes the first row group's number, and fails where that is 0

Rows = Iterator[Mapping[str, Any]]


def read_file(path: Path) -> Rows:
    """The rows of a local file, one at a time, each value as the file holds it.

    JSON is decoded here from lines of text: the JSON builder of `datasets` infers column types, and a gold of
    2024-01-01 comes out of it as a datetime, one of more than 64 bits as a rounded float, one of 3 beside a 1.5 as 3.0.
    A CSV's cells stay text for the same reason (007, 1.50 and NA are answers).

    Raises:
        UserError: the file is missing or can't be read; it names the line where there is one.
    """
    if not path.is_file():
        raise UserError(f"data.source '{path}' is not there; check the path.")
    try:
        if path.suffix == ".parquet":
            yield from _stream("parquet", path, batch_size=_PARQUET_ROWS)
        elif path.suffix == ".csv":
            yield from _csv(path)
        else:
            yield from _json(path)
    except UnicodeDecodeError as error:
        raise UserError(f"data.source '{path}' is not UTF-8 ({error.reason}); save it as UTF-8.") from error
    except (OSError, ValueError, LookupError, TypeError) as error:  # what pyarrow, pandas and the csv module raise
        raise UserError(
            f"data.source '{path}' can't be read as {path.suffix[1:]} ({_sentence(error)}); mend or replace it."
        ) from error


def read_named(name: str, subset: str | None, split: str, *, on_hub: bool) -> Rows:
    """The rows of :func:`named_dataset`."""
    yield from named_dataset(name, subset, split, on_hub=on_hub)


def named_dataset(name: str, subset: str | None, split: str, *, on_hub: bool) -> Any:
    """A split of a hub data set, or of a local folder laid out like one, as a ``datasets.Dataset``.

    A hub data set is downloaded once into the cache of `datasets`, and read from there when the hub is out of reach.

    Raises:
        UserError: it can't be reached or does not exist, or has no such subset or split.
    """
    from datasets.exceptions import DatasetNotFoundError, DatasetsError
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        with _hub_or_cache(name) if on_hub else nullcontext():
            return _load_dataset()(name, subset, split=split)
    except (DatasetNotFoundError, RepositoryNotFoundError) as error:
        raise UserError(
            f"data.source '{name}' is not on the Hugging Face hub or not open to you; check the id, or log in with: "
            "hf auth login"
        ) from error
    except ConnectionError as error:
        raise NotHere(
            f"data.source '{name}': the Hugging Face hub can't be reached and the local cache does not hold it; "
            "connect to the network, or download the data and set data.source to the file."
        ) from error
    except (DatasetsError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise _named_error(name, subset, split, error) from error


@contextmanager
def _hub_or_cache(name: str) -> Iterator[None]:
    """Ask the hub once and briefly; where it is out of reach, `datasets` shall look into its cache at once.

    Left alone it retries each request for 23 s first.
    """
    from datasets import config
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # the HTTP library that it uses itself

    before, offline = config.HF_HUB_OFFLINE, False
    try:
        HfApi().dataset_info(name, timeout=_PROBE_SECONDS)
    except RepositoryNotFoundError:
        raise
    except HfHubHTTPError:
        pass  # the hub is there; what is wrong, load_dataset will meet and tell
    except (httpx.TransportError, OfflineModeIsEnabled):
        offline = True
    config.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


def _named_error(name: str, subset: str | None, split: str, error: Exception) -> UserError:
    text = _sentence(error)
    lowered = text.lower()
    if "split" in lowered or "instruction" in lowered:
        return UserError(f"data.split '{split}' can't be taken from '{name}': {text}; name a split it has.")
    if "config" in lowered:
        key = f"data.subset '{subset}' is not one of" if subset else "data.subset must name one of the subsets of"
        return UserError(f"{key} '{name}': {text}.")
    return UserError(f"data.source '{name}' can't be loaded ({text}); check the id or take a local file.")


def _sentence(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {error.colno}"
    # `datasets` goes on with an example of its own calls.
    text = str(error).partition("Example of usage")[0]
    return textwrap.shorten(text, 300).rstrip(".") or type(error).__name__


def _json(path: Path) -> Rows:
    with path.open(encoding="utf-8-sig") as stream:
        is_array = next((line for line in stream if line.strip()), "").lstrip().startswith("[")
    if is_array:
        yield from _json_array(path)
        return
    for index, row in enumerate(_stream("text", path, encoding="utf-8-sig")):
        if row["text"].strip():
            yield _record(row["text"], path, f"line {index + 1}")


def _json_array(path: Path) -> Rows:
    for document in _stream("text", path, encoding="utf-8-sig", sample_by="document"):
        try:
            rows = json.loads(document["text"])
        except json.JSONDecodeError as error:
            raise UserError(
                f"data.source '{path}' is not JSON at line {error.lineno} ({_sentence(error)}); "
                "write one array of objects, or one object a line."
            ) from error
        for index, row in enumerate(rows):
            yield _object(row, path, f"element {index + 1}")


def _record(text: str, path: Path, place: str) -> Mapping[str, Any]:
    try:
        return _object(json.loads(text), path, place)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"data.source '{path}' is not JSON at {place} ({_sentence(error)}); "
            "write one object a line, or one array of objects."
        ) from error


def _object(value: object, path: Path, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UserError(
            f"data.source '{path}' has no JSON object at {place} ({type(value).__name__}); write rows as objects, "
            'e.g. {"question": ..., "answer": ...}.'
        )
    return value


def _csv(path: Path) -> Rows:
    from datasets import Features, Value

    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        header = next(csv.reader(stream), [])
    features = Features({column: Value("string") for column in header})
    yield from _stream("csv", path, encoding="utf-8-sig", features=features, keep_default_na=False)


def _stream(builder: str, path: Path, **options: Any) -> Rows:
    # Streaming: the first rows come at once, and no copy of the file is left in a cache. data_files takes patterns.
    files = {"train": glob.escape(str(path))}
    yield from _load_dataset()(builder, data_files=files, split="train", streaming=True, **options)


def _load_dataset() -> Callable[..., Any]:
    import datasets

    # Each load, of a local file too, asks an S3 bucket so as to be counted: telemetry, and 5 s without a network.
    if "HF_UPDATE_DOWNLOAD_COUNTS" not in os.environ:
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    # It logs each error before raising it, and the user shall read one sentence.
    logging.getLogger("datasets").setLevel(logging.CRITICAL)
    load_dataset: Callable[..., Any] = datasets.load_dataset
    return load_dataset
