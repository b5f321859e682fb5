"""What the holder of a folder's lock has learnt of its objects: nobody else changes them, so each is asked for once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_core.objects import Objects

_SMALL = (".json", ".yaml", ".jsonl")  # manifests and what else is read again and again
_UNKNOWN: Any = object()


class KnownObjects(Objects):
    """``Objects`` with a memory, for as long as the lock is held.

    That something is not there is remembered of such small files only: tables may come from workers meanwhile.
    """

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        self._texts: dict[str, bytes | None] = {}
        self._digests: dict[str, tuple[str, int] | None] = {}

    def read_bytes(self, path: str) -> bytes:
        if not _is_small(path):
            return super().read_bytes(path)
        if path not in self._texts:
            try:
                self._texts[path] = super().read_bytes(path)
            except FileNotFoundError:
                self._texts[path] = None
        found = self._texts[path]
        if found is None:
            raise FileNotFoundError(path)
        return found

    def read_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        unknown = [path for path in paths if path not in self._texts]
        found = super().read_many(unknown)
        self._texts.update({path: found.get(path) for path in unknown if _is_small(path)})
        return found | {path: text for path in paths if (text := self._texts.get(path)) is not None}

    def exists(self, path: str) -> bool:
        if path in self._digests:
            return True
        if not _is_small(path):
            return super().exists(path)
        try:
            return self.read_bytes(path) is not None
        except FileNotFoundError:
            return False

    def digest(self, path: str) -> tuple[str, int] | None:
        if path not in self._digests:
            self._digests[path] = super().digest(path)
        return self._digests[path]

    def put(self, source: Path, path: str, sha256: str) -> None:
        self._forget(path)
        super().put(source, path, sha256)
        self._digests[path] = sha256, source.stat().st_size

    def put_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        self._forget(path)
        return super().put_if(path, data, tag)

    def delete_file(self, path: str) -> None:
        if self._texts.get(path, _UNKNOWN) is None:
            return
        self._forget(path)
        super().delete_file(path)
        if _is_small(path):
            self._texts[path] = None

    def delete(self, path: str) -> None:
        self._forget(path)
        super().delete(path)

    def _forget(self, path: str) -> None:
        for known in (self._texts, self._digests):
            for name in [name for name in known if name == path or name.startswith(f"{path}/")]:
                del known[name]


def _is_small(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(_SMALL) and not name.startswith(".")
