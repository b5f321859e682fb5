"""A store laid over another: what it does not own is read from the one beneath, which is never written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_core.storage import FileRecord, Store


class Overlay(Store):
    """``own`` for the paths that it owns, ``beneath`` for all others. ``fs``, ``root`` and ``uri`` are the own ones.

    Who owns a path is a rule and not a matter of what lies there, so that a half-written folder never gets mixed up
    with the finished one beneath.
    """

    def __init__(self, own: Store, beneath: Store, owns: Callable[[str], bool]) -> None:
        self.fs, self.root, self.is_local, self.uri = own.fs, own.root, own.is_local, own.uri
        self._objects = own._objects
        self._own, self._beneath, self._owns = own, beneath, owns

    def serving(self, relative: str) -> Store:
        return self._own if self._owns(relative) else self._beneath.serving(relative)

    def path(self, relative: str) -> str:
        return self.serving(relative).path(relative)

    def exists(self, relative: str) -> bool:
        return self.serving(relative).exists(relative)

    def files(self, relative: str) -> list[str]:
        return self.serving(relative).files(relative)

    def hidden_files(self, relative: str) -> list[str]:
        return self.serving(relative).hidden_files(relative)

    def read_bytes(self, relative: str) -> bytes:
        return self.serving(relative).read_bytes(relative)

    def record(self, relative: str) -> FileRecord | None:
        return self.serving(relative).record(relative)

    def read_record(self, relative: str) -> FileRecord:
        return self.serving(relative).read_record(relative)

    @contextmanager
    def local_folder(self, relative: str) -> Iterator[Path]:
        with self.serving(relative).local_folder(relative) as folder:
            yield folder

    def publish(self, relative: str, data: bytes) -> None:
        """As a store does. Raises PermissionError for a path that is not its own."""
        self._require_own(relative)
        self._own.publish(relative, data)

    def write(self, relative: str, produce: Callable[[Path], None]) -> FileRecord:
        """As a store does. Raises PermissionError for a path that is not its own."""
        self._require_own(relative)
        return self._own.write(relative, produce)

    def write_folder(self, relative: str, produce: Callable[[Path], None]) -> dict[str, FileRecord]:
        """As a store does. Raises PermissionError for a path that is not its own."""
        self._require_own(relative)
        return self._own.write_folder(relative, produce)

    def delete(self, relative: str) -> None:
        """As a store does. Raises PermissionError for a path that is not its own."""
        self._require_own(relative)
        self._own.delete(relative)

    def delete_file(self, relative: str) -> None:
        """As a store does. Raises PermissionError for a path that is not its own."""
        self._require_own(relative)
        self._own.delete_file(relative)

    def _require_own(self, relative: str) -> None:
        if not self._owns(relative):
            raise PermissionError(
                f"'{relative}' belongs to the store beneath '{self.uri}' and is not written from there"
            )
