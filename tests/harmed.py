"""Copies of a finished run with its MLflow store, and ways to harm them: with a manifest that covers it up, or not."""

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grpo_core.artifacts import Artifact, Manifest, parquet_writer
from grpo_core.storage import Store


def copy_run(finished: Path, target: Path) -> Path:
    """A copy of a run folder and of MLflow's store beside it, which then knows its files at their new place."""
    shutil.copytree(finished.parent, target)
    with sqlite3.connect(target / "mlflow.db") as store:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            store.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (str(finished.parent), str(target)))
    return target / finished.name


def mend(run: Path, place: str, **changes: Any) -> None:
    """Write an artifact's manifest anew over the files as they lie there now, so that it vouches for them."""
    artifact = Artifact(Store(str(run)), place)
    manifest = artifact.manifest()
    assert manifest is not None
    names = [name for name in manifest.files if artifact.store.exists(artifact.file(name))]
    files = {name: artifact.store.record(artifact.file(name)) for name in names}
    values: dict[str, Any] = {"files": files} | changes
    mended: Manifest = replace(manifest, **values)
    artifact.store.write_bytes(artifact.manifest_file, mended.to_bytes())


def edit_rows(file: Path, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Change the rows of a Parquet file in place."""
    table = pq.read_table(file)
    parquet_writer(pa.Table.from_pylist(edit(table.to_pylist()), schema=table.schema))(file)


def set_cell(file: Path, row: int, column: str, value: object) -> dict[str, Any]:
    """Change one cell of a Parquet file; returns the row as it was."""
    before: list[dict[str, Any]] = []

    def edit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        before.append(dict(rows[row]))
        rows[row][column] = value
        return rows

    edit_rows(file, edit)
    return before[0]
