"""Artifacts: what a stage leaves on disk, immutable, with a manifest that is written last.

An artifact whose manifest is missing, whose fingerprint differs or whose bytes do not match does not exist. The
fingerprint is a hash of all that the stage depends on: its name, round and version, the configuration it reads and the
digests of its inputs. ``finished_at`` is the only wall-clock figure in a manifest and is part of no digest.
"""

import json
import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grpo_core import faults
from grpo_core.fingerprint import Fingerprint, canonical_json, digest_json
from grpo_core.storage import FileRecord, Store

MANIFEST = "manifest.json"
RETIRED = "retired.json"  # says when retention removed an artifact's files; the manifest with their digests stays
_MARK = ".done-"
_OWN_DIGEST = "manifest_sha256"
TIMINGS = "timings.json"  # beside the digested files, never among them


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of a finished artifact. ``files`` maps names to digests and sizes; ``metrics`` are deterministic."""

    fingerprint: str
    parts: Mapping[str, Any]
    rows: int
    files: Mapping[str, FileRecord]
    metrics: Mapping[str, float]
    finished_at: float  # seconds since the epoch

    @property
    def digest(self) -> str:
        """The identity of the bytes, by which other stages name this artifact as their input."""
        return digest_json({name: record.sha256 for name, record in self.files.items()})

    def digest_of(self, matches: Callable[[str], bool]) -> str:
        """The identity of some of the files only."""
        return digest_json({name: record.sha256 for name, record in self.files.items() if matches(name)})

    def to_bytes(self) -> bytes:
        """As JSON, with a digest of itself: a manifest vouches for other files, so it is not trusted unseen, either."""
        told = asdict(self)
        return (json.dumps({**told, _OWN_DIGEST: digest_json(told)}, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    @lru_cache(maxsize=1024)  # the stages of a round read the same few dozen again and again
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Raises ValueError, KeyError, TypeError or AttributeError when the bytes are not what ``to_bytes`` made."""
        value = json.loads(data)
        del value[_OWN_DIGEST]
        files = {name: FileRecord(**record) for name, record in value.pop("files").items()}
        found = cls(files=files, **value)
        if found.to_bytes() != data:
            raise ValueError("the manifest was altered after it was written")
        return found


@dataclass(frozen=True, slots=True)
class Condition:
    """How an artifact stands: ``done``, ``missing``, ``stale`` (made from other inputs) or ``damaged``; and why."""

    state: str
    why: str

    @property
    def done(self) -> bool:
        return self.state == "done"


class Artifact:
    """One artifact of a run: a folder of files with their manifest, or one table as ``rounds/0007/plan.parquet``.

    A single table lies among other artifacts; its manifest stands beside it as ``plan.manifest.json``.
    """

    def __init__(self, store: Store, location: str) -> None:
        self.store = store
        self.location = location
        single = location.endswith(".parquet")
        self.folder = posixpath.dirname(location) if single else location
        self.prefix = posixpath.basename(location).removesuffix("parquet") if single else ""

    def file(self, name: str) -> str:
        return posixpath.join(self.folder, name)

    @property
    def manifest_file(self) -> str:
        return self.file(self.prefix + MANIFEST)

    @property
    def retired_file(self) -> str:
        return self.file(self.prefix + RETIRED)

    def owned_files(self) -> list[str]:
        """Visible files of this artifact, the manifest and its companions included."""
        return [name for name in self.store.files(self.folder) if name.startswith(self.prefix)]

    def manifest(self) -> Manifest | None:
        """The manifest as it lies there, unproven; None when there is none or it can't be read."""
        try:
            return Manifest.from_bytes(self.store.read_bytes(self.manifest_file))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def condition(self, fingerprint: Fingerprint | None = None) -> Condition:
        """Prove the artifact byte by byte, and against a fingerprint when one is given."""
        manifest = self.manifest()
        if manifest is None:
            if self.store.exists(self.manifest_file):
                return Condition("damaged", f"{self.manifest_file} has other bytes than were written")
            return Condition("missing", "not finished")
        if fingerprint is not None and manifest.fingerprint != fingerprint.digest:
            return Condition("stale", f"changed: {fingerprint.difference(manifest.parts)}")
        if self.store.exists(self.retired_file):
            return Condition("done", "files removed by retention, their digests kept")
        for name, expected in manifest.files.items():
            found = self.store.record(self.file(name))
            if found is None:
                return Condition("damaged", f"{self.file(name)} is gone")
            if found != expected:
                return Condition("damaged", f"{self.file(name)} has other bytes than its manifest says")
        rows = f"{manifest.rows} rows in " if manifest.rows else ""
        return Condition("done", f"{rows}{len(manifest.files)} files, every byte as in the manifest")

    def tables(self) -> list[str]:
        """Names of the shards in order: those in the manifest, or while there is none, those that lie there."""
        manifest = self.manifest()
        names = self.owned_files() if manifest is None else sorted(manifest.files)
        return [name for name in names if name.endswith(".parquet")]

    def read_table(self, schema: pa.Schema) -> pa.Table:
        """All shards of a table artifact, in order of name."""
        tables = [read_parquet(self.store, self.file(name), schema) for name in self.tables()]
        return pa.concat_tables(tables or [schema.empty_table()])

    def retire(self) -> bool:
        """Remove the files and keep the manifest, which still knows their digests; True when any went."""
        manifest = self.manifest()
        if manifest is None:
            return False
        if not self.is_retired:
            self.store.write_bytes(self.retired_file, (json.dumps({"retired_at": time.time()}) + "\n").encode())
        left = [name for name in manifest.files if self.store.exists(self.file(name))]  # also after a kill in between
        for name in left:
            self.store.delete_file(self.file(name))
        return bool(left)

    def forget(self) -> None:
        """Give a retired artifact up altogether, so that its stage makes it again; one that is there stays."""
        if self.is_retired:
            self.store.delete_file(self.manifest_file)
            self.store.delete_file(self.retired_file)

    def mark_file(self, name: str) -> str:
        """Where a writer notes that one file of an unfinished artifact is whole."""
        return self.file(f"{_MARK}{name}.json")

    def write_mark(self, name: str, fingerprint: str, record: FileRecord, rows: int) -> None:
        """Note that one file is whole, for whoever makes the artifact of this fingerprint."""
        mark = {"fingerprint": fingerprint, "rows": rows, "file": asdict(record)}
        self.store.write_bytes(self.mark_file(name), canonical_json(mark).encode())

    def write_table(self, name: str, table: pa.Table, fingerprint: str) -> FileRecord:
        """Write one Parquet file and its mark; any process may, while one ``ArtifactWriter`` makes the artifact."""
        record = self.store.write(self.file(name), parquet_writer(table))
        self.write_mark(name, fingerprint, record, table.num_rows)
        return record

    def marked(self, name: str, fingerprint: str) -> tuple[FileRecord, int] | None:
        """Digest and rows of a file that has a mark of this fingerprint and the bytes that it tells; else None."""
        try:
            mark = json.loads(self.store.read_bytes(self.mark_file(name)))
            expected, rows, made_for = FileRecord(**mark["file"]), int(mark["rows"]), mark["fingerprint"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        proven = made_for == fingerprint and self.store.record(self.file(name)) == expected
        return (expected, rows) if proven else None

    def remove_marks(self) -> None:
        """Of a finished artifact nobody needs the marks; a kill right after its manifest may have left them."""
        for name in self.store.hidden_files(self.folder):
            if name.startswith(_MARK + self.prefix):
                self.store.delete_file(self.file(name))

    @property
    def is_retired(self) -> bool:
        return self.store.exists(self.retired_file)


def read_parquet(store: Store, relative: str, schema: pa.Schema) -> pa.Table:
    """One Parquet file as a table of exactly this schema."""
    serving = store.serving(relative)
    if serving.objects:  # one request for all of it
        return pq.read_table(pa.BufferReader(serving.read_bytes(relative)), schema=schema).cast(schema)
    with serving.fs.open(serving.path(relative), "rb") as stream:
        return pq.read_table(stream, schema=schema).cast(schema)


def parquet_writer(table: pa.Table) -> Callable[[Path], None]:
    """A producer for ``Store.write``: zstd 3, dictionaries on string columns only, row groups of 1024."""
    strings = [field.name for field in table.schema if pa.types.is_string(field.type)]

    def produce(target: Path) -> None:
        pq.write_table(
            table, target, compression="zstd", compression_level=3, use_dictionary=strings, row_group_size=1024
        )  # fmt: skip

    return produce


class ArtifactWriter:
    """Makes one artifact, file by file. Files finished before a kill are kept when their fingerprint is this one."""

    def __init__(self, artifact: Artifact, fingerprint: Fingerprint) -> None:
        self.artifact = artifact
        self.fingerprint = fingerprint
        self.store = artifact.store
        self.files: dict[str, FileRecord] = {}
        self.rows: dict[str, int] = {}
        self._began = time.monotonic()
        self._sweep()

    def _row_count(self, name: str) -> int:
        if not name.endswith(".parquet"):
            return 0
        with self.store.fs.open(self.store.path(self.artifact.file(name)), "rb") as stream:
            return int(pq.read_metadata(stream).num_rows)

    def _sweep(self) -> None:
        """Take over the whole files of an interrupted or harmed attempt at the same work; remove everything else."""
        key = self.fingerprint.digest
        manifest = self.artifact.manifest()
        if manifest is not None and manifest.fingerprint == key:
            # One file of it was harmed: the others are as good as ever, and may be impossible to make again. A model's
            # files are made all at once or not at all.
            of_tables = any(name.endswith(".parquet") for name in manifest.files)
            for name, record in manifest.files.items():
                if of_tables and self.store.record(self.artifact.file(name)) == record:
                    self.artifact.write_mark(name, key, record, self._row_count(name))
        self.store.delete_file(self.artifact.manifest_file)
        for hidden in self.store.hidden_files(self.artifact.folder):
            if not (hidden.startswith(_MARK) and hidden.endswith(".json")):
                self.store.delete_file(self.artifact.file(hidden))
                continue
            if not self.take_up(hidden.removeprefix(_MARK).removesuffix(".json")):
                self.store.delete_file(self.artifact.file(hidden))
        for name in self.artifact.owned_files():
            if name not in self.files:
                self.store.delete_file(self.artifact.file(name))

    def has(self, name: str) -> bool:
        """Whether this file is already there, finished and proven."""
        return name in self.files

    def take_up(self, name: str) -> bool:
        """Count a file that another process has written and marked as this artifact's; False when it isn't whole."""
        found = self.artifact.marked(name, self.fingerprint.digest)
        if found is not None:
            self.files[name], self.rows[name] = found
        return found is not None

    def take_up_marked(self, names: Sequence[str]) -> None:
        """Count those of these files that other processes have finished by now."""
        marks = set(self.store.hidden_files(self.artifact.folder))
        for name in names:
            if not self.has(name) and posixpath.basename(self.artifact.mark_file(name)) in marks:
                self.take_up(name)

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write one Parquet file and mark it as finished, so that a kill after this moment does not lose it."""
        record = self.artifact.write_table(name, table, self.fingerprint.digest)
        self.files[name], self.rows[name] = record, table.num_rows

    def write_json(self, name: str, value: Any) -> None:
        """Write a small JSON file and mark it as finished."""
        record = self.store.write_bytes(self.artifact.file(name), (canonical_json(value) + "\n").encode())
        self.artifact.write_mark(name, self.fingerprint.digest, record, 0)
        self.files[name], self.rows[name] = record, 0

    def write_folder(self, produce: Callable[[Path], None]) -> None:
        """Write all files that ``produce`` leaves in a local folder."""
        self.files |= self.store.write_folder(self.artifact.folder, produce)

    def finish(self, metrics: Mapping[str, float] | None = None) -> Manifest:
        """Write the manifest: from here on the artifact exists."""
        faults.point(f"before-manifest:{self.artifact.location}")
        seconds = round(time.monotonic() - self._began, 3)
        timings = self.artifact.file(self.artifact.prefix + TIMINGS)
        self.store.write_bytes(timings, (json.dumps({"seconds": seconds}) + "\n").encode())
        manifest = Manifest(
            fingerprint=self.fingerprint.digest,
            parts=json.loads(canonical_json(asdict(self.fingerprint))),
            rows=sum(self.rows.values()),
            files=dict(sorted(self.files.items())),
            metrics=dict(sorted((metrics or {}).items())),
            finished_at=time.time(),
        )
        self.store.publish(self.artifact.manifest_file, manifest.to_bytes())
        self.artifact.remove_marks()
        for name in self.store.hidden_files(self.artifact.folder):
            if not name.startswith(_MARK):  # what a helper that was killed had begun
                self.store.delete_file(self.artifact.file(name))
        return manifest
