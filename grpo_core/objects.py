"""Objects of an S3-compatible store: writes on condition, digests that the store keeps, few requests.

An object is visible whole or not at all, and what was written is read from the next request on (S3, MinIO, R2 and their
like). Every request is sent again by s3fs and botocore when it fails for a moment, so an answer may get lost although
the write took place: whoever writes on condition has to look whether what lies there is its own.
"""

import base64
import email.utils
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsspec.asyn import sync

_SHA256 = "sha256"  # the object's metadata that tells its digest, also where it was uploaded in parts
_ONE_PUT = 100 << 20  # bytes; larger files go up in parts
_LISTED = 1000  # keys a request
_AT_ONCE = 16  # requests
_TRIES = 4  # to read an object whose answers break off


@dataclass(frozen=True, slots=True)
class Seen:
    """An object as it was read. ``age_seconds`` is told by the store's own clock alone."""

    data: bytes
    tag: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that goes on or was left, by the object's name relative to a folder."""

    name: str
    upload_id: str


def objects_of(fs: Any) -> "Objects | None":
    """The objects behind an fsspec file system, or None where it is not S3-compatible."""
    protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    return Objects(fs) if protocol in ("s3", "s3a") else None


class Objects:
    """The objects that an ``s3fs.S3FileSystem`` reaches. Paths are ``bucket/key``; errors are those of s3fs."""

    def __init__(self, fs: Any) -> None:
        from botocore.exceptions import BotoCoreError  # both come with s3fs alone
        from s3fs.core import S3_RETRYABLE_ERRORS

        self.fs = fs
        self._broken: tuple[type[Exception], ...] = S3_RETRYABLE_ERRORS  # an answer that ended in the middle
        self._no_answer: type[Exception] = BotoCoreError  # no connection, no credentials: s3fs leaves these as they are

    def read(self, path: str) -> Seen | None:
        """An object with its tag; None when there is none."""
        bucket, key = self._split(path)
        for _ in range(_TRIES):
            try:
                return self._get(bucket, key)
            except self._broken as error:
                last = error
        raise OSError(str(last)) from last

    def _get(self, bucket: str, key: str) -> Seen | None:
        async def get() -> tuple[bytes, dict[str, Any]]:
            answer = await self.fs._call_s3("get_object", Bucket=bucket, Key=key)
            async with answer["Body"] as body:
                return bytes(await body.read()), answer

        try:
            data, answer = sync(self.fs.loop, get)
        except FileNotFoundError:
            return None
        except self._no_answer as error:
            raise OSError(str(error)) from error
        now = email.utils.parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        return Seen(data, answer["ETag"], (now - answer["LastModified"]).total_seconds())

    def read_bytes(self, path: str) -> bytes:
        """All of an object. Raises FileNotFoundError."""
        seen = self.read(path)
        if seen is None:
            raise FileNotFoundError(path)
        return seen.data

    def read_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        """All of each object that exists, many at a time."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = zip(paths, threads.map(self.read, paths), strict=True)
            return {path: seen.data for path, seen in found if seen is not None}

    def exists(self, path: str) -> bool:
        return self._head(path) is not None

    def digest(self, path: str) -> tuple[str, int] | None:
        """sha256 in hex and size of an object as its writer and the store know them; None where they don't tell.

        Raises:
            FileNotFoundError: there is no such object.
        """
        answer = self._head(path)
        if answer is None:
            raise FileNotFoundError(path)
        computed = answer.get("ChecksumSHA256", "-")
        if "-" not in computed:  # of the whole object, and checked by the store when it came in
            return base64.b64decode(computed).hex(), int(answer["ContentLength"])
        told = answer.get("Metadata", {}).get(_SHA256)
        return None if told is None else (told, int(answer["ContentLength"]))

    def put(self, source: Path, path: str, sha256: str) -> None:
        """Upload a file, large ones in parts; it is visible when all of it is there."""
        if os.path.getsize(source) < _ONE_PUT:
            self._put(path, source.read_bytes(), sha256)
        else:
            self.fs.put_file(str(source), path, Metadata={_SHA256: sha256})

    def put_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write a small object where the one there has this tag, or with None where there is none.

        Returns:
            The new object's tag; None when the store refused, because something else lies there.
        """
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            return str(self._put(path, data, hashlib.sha256(data).hexdigest(), **condition)["ETag"])
        except OSError as error:
            if _status(error) in (404, 409, 412) and _code(error) != "NoSuchBucket":
                return None
            raise

    def names(self, path: str) -> Iterator[str]:
        """Keys below a folder, relative to it."""
        bucket, key = self._split(path)
        for entry in self._list(bucket, f"{key}/" if key else "", ""):
            yield entry["Key"][len(key) + 1 if key else 0 :]

    def names_in(self, path: str, prefix: str = "") -> Iterator[str]:
        """Names of the objects directly in a folder that begin so."""
        bucket, key = self._split(path)
        folder = f"{key}/" if key else ""
        for entry in self._list(bucket, folder + prefix, "/"):
            yield entry["Key"][len(folder) :]

    def delete_file(self, path: str) -> None:
        """Remove one object; nothing happens when there is none."""
        bucket, key = self._split(path)
        self._call("delete_object", Bucket=bucket, Key=key)

    def delete(self, path: str) -> None:
        """Remove an object, or all objects of a folder; nothing happens when there are none."""
        bucket, key = self._split(path)
        found = [entry["Key"] for entry in self._list(bucket, key, "")]
        for name in found:
            if not key or name == key or name.startswith(f"{key}/"):
                self._call("delete_object", Bucket=bucket, Key=name)

    def uploads(self, path: str) -> list[Upload]:
        """Unfinished uploads in parts below a folder: nobody sees them, but they are stored and paid for."""
        bucket, key = self._split(path)
        prefix = f"{key}/" if key else ""
        answer = self._call("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
        return [Upload(found["Key"][len(prefix) :], found["UploadId"]) for found in answer.get("Uploads", [])]

    def abort(self, path: str, upload: Upload) -> None:
        """Give up one of the uploads below a folder."""
        bucket, key = self._split(f"{path}/{upload.name}")
        self._call("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.upload_id)

    def _call(self, method: str, **arguments: Any) -> Any:
        try:
            return self.fs.call_s3(method, **arguments)
        except self._no_answer as error:
            raise OSError(str(error)) from error

    def _put(self, path: str, data: bytes, sha256: str, **condition: str) -> Any:
        bucket, key = self._split(path)
        return self._call(
            "put_object", Bucket=bucket, Key=key, Body=data, Metadata={_SHA256: sha256}, ChecksumAlgorithm="SHA256",
            ChecksumSHA256=base64.b64encode(bytes.fromhex(sha256)).decode(), **condition,
        )  # fmt: skip

    def _head(self, path: str) -> Any:
        bucket, key = self._split(path)
        try:
            return self._call("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        except FileNotFoundError:
            return None

    def _list(self, bucket: str, prefix: str, delimiter: str) -> Iterable[dict[str, Any]]:
        more: dict[str, str] = {"Delimiter": delimiter} if delimiter else {}
        while True:
            answer = self._call("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=_LISTED, **more)
            yield from answer.get("Contents", [])
            if not answer.get("IsTruncated"):
                return
            more["ContinuationToken"] = answer["NextContinuationToken"]

    def _split(self, path: str) -> tuple[str, str]:
        bucket, key, _ = self.fs.split_path(path)
        return str(bucket), str(key)


def _response(error: BaseException) -> dict[str, Any]:
    return getattr(error.__cause__, "response", None) or {}


def _status(error: BaseException) -> int:
    return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: BaseException) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))
