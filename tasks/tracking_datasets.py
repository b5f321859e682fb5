"""Lineage in MLflow: a run's sources, and the prompts made of them, as dataset inputs with their digests."""

import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grpo_core.artifacts import Manifest
from grpo_core.fingerprint import digest_json
from tasks.filter_prompts import SOURCES
from tasks.pools import pools
from tasks.run import Run

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

_LONGEST_NAME = 400  # MLflow takes 500 characters
_LONGEST_DIGEST = 36
_ROW_COUNTS = ("train", "eval", "rejected")


def pool_inputs(run: Run, folder: str, manifest: Manifest) -> Iterator["DatasetInput"]:
    """The training and the held-out prompts of a pool, and each source that they come from.

    Prompts are known by the digests of their files. A source is known by what ``prompts/facts.py`` found out of it: the
    sha256 of a file or folder, the revisions of a hub data set, version, seed and options of a generator.
    """
    sources = json.loads(run.store.read_bytes(f"{folder}/{SOURCES}")) if SOURCES in manifest.files else []
    names = "+".join(source["name"] for source in sources) or run.config.data.source
    for split, context in (("train", "training"), ("eval", "evaluation")):
        rows = int(manifest.metrics.get(split, 0))
        if rows:
            file = posixpath.join(folder, f"{split}.parquet")
            yield _input(
                f"{names[-_LONGEST_NAME:]}:{split}",
                manifest.files[f"{split}.parquet"].sha256,
                "local" if run.store.is_local else run.store.uri.partition("://")[0],
                {"uri": posixpath.join(run.store.uri, file)},
                rows,
                context,
            )
    for source in sources:
        told = {key: value for key, value in source.items() if key not in _ROW_COUNTS}
        rows = sum(source[count] for count in _ROW_COUNTS)
        digest = told.get("sha256") or digest_json(told)
        yield _input(source["name"][-_LONGEST_NAME:], digest, source["kind"], told, rows, "source")


def round_inputs(run: Run, round_number: int) -> Iterator["DatasetInput"]:
    """The training prompts that a round may take from."""
    for folder in pools(run.config.data, round_number):
        manifest = run.artifact(folder).manifest()
        if manifest is not None:
            yield next(pool_inputs(run, folder, manifest))


def _input(name: str, digest: str, kind: str, source: Mapping[str, Any], rows: int, context: str) -> "DatasetInput":
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=name,
        digest=digest[:_LONGEST_DIGEST],
        source_type=kind,
        source=json.dumps(source, ensure_ascii=False),
        profile=json.dumps({"num_rows": rows}),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context), InputTag("digest", digest)])
