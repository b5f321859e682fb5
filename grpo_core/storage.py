"""A run's folder at a local path or any fsspec URI, with writes that are whole or absent.

Local files are written to a hidden temporary name, fsynced and renamed; remote ones are prepared in a local scratch
folder and uploaded in one put, which object stores make visible all at once. Where a process holds the lease of a
folder in an object store (lease.py), each write and removal asks it first.
"""

import hashlib
import os
import posixpath
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
from fsspec.implementations.local import LocalFileSystem
from safetensors import SafetensorError

from grpo_core import faults
from grpo_core.errors import UserError
from grpo_core.lease import LOCK, LeaseLost, lease_over
from grpo_core.objects import Objects, objects_of

_CHUNK = 1 << 20
_SCRATCH = ".tmp-"
_TRIES = 3  # to publish what a late put of another process came before


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a manifest says of one file: ``sha256`` in hex, ``size`` in bytes."""

    sha256: str
    size: int


def file_record(stream: Any) -> FileRecord:
    """Digest and size of a binary stream, read to its end in chunks."""
    digest, size = hashlib.sha256(), 0
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return FileRecord(digest.hexdigest(), size)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_lease(full: str) -> None:
    if lease := lease_over(full):
        lease.require()


class Store:
    """The files below one root. Every path given to it is relative to that root, with forward slashes."""

    def __init__(self, uri: str) -> None:
        if "://" in str(uri) and urlsplit(str(uri)).password:
            raise UserError(
                "The run's address holds a password, and it is stored and shown in many places; give the credentials "
                "by the environment or a config file of its fsspec driver."
            )
        try:
            # A listing that was kept would not show what another process has written since.
            options = {} if fsspec.utils.get_protocol(str(uri)) in ("file", "local") else {"use_listings_cache": False}
            self.fs, self.root = fsspec.core.url_to_fs(str(uri), **options)
        except (ValueError, ImportError) as error:
            raise UserError(
                f"The folder '{uri}' can't be opened ({error}); give a local path or an fsspec URI."
            ) from error
        self.is_local = isinstance(self.fs, LocalFileSystem)
        self.uri = self.root if self.is_local else str(uri).rstrip("/")
        self._objects = objects_of(self.fs)

    @property
    def objects(self) -> Objects | None:
        """The objects of an S3-compatible store; with a memory while this process holds the lock of the folder."""
        if self._objects is None:
            return None
        lease = lease_over(f"{self.root}/")
        return self._objects if lease is None else lease.known

    def serving(self, relative: str) -> "Store":
        """The store in whose file system a path lies: this one, unless it is laid over another (overlay.py)."""
        return self

    def path(self, relative: str) -> str:
        """The full path of a file in its file system's own terms."""
        return posixpath.join(self.root, relative) if relative else self.root

    def exists(self, relative: str) -> bool:
        """Whether there is such a file."""
        full = self.path(relative)
        return self.objects.exists(full) if self.objects else bool(self.fs.exists(full))

    def files(self, relative: str) -> list[str]:
        """Visible files below a folder, as paths relative to it, sorted; hidden names are work in progress."""
        return sorted(
            name for name in self._names(relative) if not any(part.startswith(".") for part in name.split("/"))
        )

    def _names(self, relative: str) -> Iterator[str]:
        base = self.path(relative)
        if self.objects:
            yield from self.objects.names(base)
        elif self.fs.isdir(base):
            self.fs.invalidate_cache(base)
            yield from (posixpath.relpath(found, base) for found in self.fs.find(base))

    def hidden_files(self, relative: str) -> list[str]:
        """Hidden files directly in a folder: unfinished writes and the marks of finished shards."""
        base = self.path(relative)
        if self.objects:
            return sorted(self.objects.names_in(base, "."))
        if not self.fs.isdir(base):
            return []
        names = (posixpath.basename(entry) for entry in self.fs.ls(base, detail=False))
        return sorted(name for name in names if name.startswith("."))

    def read_bytes(self, relative: str) -> bytes:
        full = self.path(relative)
        return self.objects.read_bytes(full) if self.objects else bytes(self.fs.cat_file(full))

    def record(self, relative: str) -> FileRecord | None:
        """Digest and size of a file as it lies there now, or None when it does not exist.

        Of an object, what the store has kept since it was uploaded: it can't be changed but by being replaced.
        """
        try:
            if self.objects and (told := self.objects.digest(self.path(relative))):
                return FileRecord(*told)
            return self.read_record(relative)
        except FileNotFoundError:
            return None

    def read_record(self, relative: str) -> FileRecord:
        """Digest and size of a file, by reading every byte. Raises FileNotFoundError."""
        with self.fs.open(self.path(relative), "rb") as stream:
            return file_record(stream)

    def write_bytes(self, relative: str, data: bytes) -> FileRecord:
        def produce(target: Path) -> None:
            target.write_bytes(data)

        return self.write(relative, produce)

    def publish(self, relative: str, data: bytes) -> None:
        """Write a file that vouches for others, and that nobody else may have written in the meantime.

        In an object store with a condition: none is replaced that was not there when the folder's lock was ours.

        Raises:
            LeaseLost: another process writes here now.
            UserError: as ``write`` does.
        """
        if self.objects is None:
            self.write_bytes(relative, data)
            return
        with self._told(relative):
            self._publish(self.objects, relative, data)

    def _publish(self, objects: Objects, relative: str, data: bytes) -> None:
        faults.point(f"before-rename:{relative}")
        full = self.path(relative)
        lease, tag = lease_over(full), None
        for _ in range(_TRIES):
            if lease is not None:
                lease.confirm()
            if objects.put_if(full, data, tag) is not None:
                break
            seen = objects.read(full)
            if seen is not None and seen.data == data:  # ours: only the answer was lost
                break
            if lease is None:
                raise self._is_written(relative)
            tag = seen.tag if seen else None  # the last put of a process that had the lock before us
        else:
            raise self._is_written(relative)
        faults.point(f"after-rename:{relative}")

    def _is_written(self, relative: str) -> LeaseLost:
        return LeaseLost(
            f"'{posixpath.join(self.uri, relative)}' was written by another process; stop that one and give the same "
            "command again."
        )

    def write(self, relative: str, produce: Callable[[Path], None]) -> FileRecord:
        """Let ``produce`` write one file at the local path it is given, then put it in place, whole.

        Raises:
            UserError: the folder is read-only or the disk is full; nothing visible is left behind.
        """
        with self._scratch(posixpath.dirname(relative)) as scratch:
            target = scratch / posixpath.basename(relative)
            produce(target)
            return self._put(target, relative)

    def write_folder(self, relative: str, produce: Callable[[Path], None]) -> dict[str, FileRecord]:
        """Let ``produce`` fill a local folder, then put its files in place; returns their records by name."""
        with self._scratch(relative) as scratch:
            produce(scratch)
            names = sorted(p.relative_to(scratch).as_posix() for p in scratch.rglob("*") if p.is_file())
            return {name: self._put(scratch / name, posixpath.join(relative, name)) for name in names}

    def delete(self, relative: str) -> None:
        """Remove a file or a folder with all that is in it; nothing happens when it is not there."""
        full = self.path(relative)
        _require_lease(full)
        if self.objects:
            self.objects.delete(full)
        elif self.fs.exists(full):
            self.fs.rm(full, recursive=True)
            self.fs.invalidate_cache()

    def delete_file(self, relative: str) -> None:
        """Remove what is one file; in an object store that takes a request less."""
        if self.objects is None:
            self.delete(relative)
            return
        _require_lease(self.path(relative))
        self.objects.delete_file(self.path(relative))

    def sweep(self) -> None:
        """Remove what killed writers left unfinished out of sight. Only for whoever is the one writer now."""
        if self.objects:
            for upload in self.objects.uploads(self.root):
                if not self._has_writer_of_its_own(upload.name):
                    self.objects.abort(self.root, upload)
        if self.is_local:
            for folder, names, files in os.walk(self.root):
                if LOCK in files and folder != self.root:
                    names.clear()  # has a writer of its own
                for name in [name for name in names if name.startswith(_SCRATCH)]:
                    shutil.rmtree(os.path.join(folder, name))
                    names.remove(name)

    def _has_writer_of_its_own(self, relative: str) -> bool:
        folders = (posixpath.join(*relative.split("/")[:depth]) for depth in range(1, relative.count("/") + 1))
        return any(self.exists(posixpath.join(folder, LOCK)) for folder in folders)

    @contextmanager
    def local_folder(self, relative: str) -> Iterator[Path]:
        """A local folder with the files of ``relative``: the folder itself, or a copy that is removed afterwards."""
        if self.is_local:
            yield Path(self.path(relative))
            return
        with tempfile.TemporaryDirectory() as scratch:
            for name in self.files(relative):
                target = Path(scratch, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                self.fs.get_file(self.path(posixpath.join(relative, name)), str(target))
            yield Path(scratch)

    @contextmanager
    def _scratch(self, relative: str) -> Iterator[Path]:
        # Beside its destination, so that the rename stays inside one file system.
        with self._told(relative):
            if self.is_local:
                parent = Path(self.path(relative))
                parent.mkdir(parents=True, exist_ok=True)
                scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=parent))
            else:
                scratch = Path(tempfile.mkdtemp(prefix="grpo-rounds-"))
            try:
                yield scratch
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    @contextmanager
    def _told(self, relative: str) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:  # the latter is how a full disk sounds when weights are saved
            reason = getattr(error, "strerror", None) or error
            mend = "free or unlock the disk" if self.is_local else "see to its store"
            raise UserError(
                f"'{posixpath.join(self.uri, relative)}' can't be written ({reason}); {mend} and run the same command "
                "again, finished work is kept."
            ) from error

    def _put(self, source: Path, relative: str) -> FileRecord:
        with source.open("rb") as stream:
            record = file_record(stream)
        faults.point(f"before-rename:{relative}")
        if self.is_local:
            target = Path(self.path(relative))
            target.parent.mkdir(parents=True, exist_ok=True)
            _sync(source)
            source.replace(target)
            _sync(target.parent)
        elif self.objects:
            _require_lease(self.path(relative))
            self.objects.put(source, self.path(relative), record.sha256)
        else:
            self.fs.put_file(str(source), self.path(relative))
            self.fs.invalidate_cache()
        faults.point(f"after-rename:{relative}")
        return record
