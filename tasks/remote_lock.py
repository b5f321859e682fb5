"""The lock of a run in no local folder: a lease in the object store, or a sentence that there can't be one."""

import logging
import os
import posixpath
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from grpo_core import interrupt
from grpo_core.errors import UserError
from grpo_core.lease import LOCK, Held, Lease, holding
from grpo_core.objects import Objects
from grpo_core.storage import Store

UNLOCKED = "GRPO_ROUNDS_UNLOCKED"  # set to 1, it says that whoever starts runs sees to it that each has one writer
_LOOK_SECONDS = 1.0
_log = logging.getLogger("grpo_rounds")  # heard on standard error where nobody has set up anything else
_in_memory: set[str] = set()
_proven: set[tuple[object, str]] = set()  # file system and bucket


class RunIsHeld(UserError):
    """Another process is writing the run; nothing of it was touched."""


@contextmanager
def remote_writer(store: Store) -> Iterator[None]:
    """Hold the lock of a run in an object store; a lost one ends the work at its next write or safe point.

    A lock whose holder may be dead is watched until that holder renews it or its lease is over, a minute at the most.

    Raises:
        RunIsHeld: someone else holds it; the sentence says who, where and since when.
        UserError: the store can't be reached, or can't hold a lock.
        LeaseLost: out of the work inside, when the lock could not be kept.
    """
    if store.objects is None:
        with _without_objects(store):
            yield
        return
    try:
        _require_conditions(store)
    except OSError as error:
        raise UserError(
            f"'{store.uri}' can't be written ({error}); see to its bucket, AWS_ENDPOINT_URL and the credentials in the "
            "environment."
        ) from error
    with ExitStack() as held:
        _wait_for_it(store, store.objects, held)
        yield


def _wait_for_it(store: Store, objects: Objects, held: ExitStack) -> None:
    seen: Held | None = None
    while True:
        try:
            held.enter_context(holding(Lease(objects, posixpath.join(store.root, LOCK), store.uri), store.root))
            return
        except Held as other:
            if seen is None:
                _log.warning(
                    "'%s' is locked by %s; waiting to see whether that is alive, for %.0f s at the most.",
                    *(store.uri, other.holder, other.free_in),
                )
            elif other.tag != seen.tag:
                raise RunIsHeld(
                    f"'{store.uri}' is being written by {other.holder}; wait for it or stop it first."
                ) from None
            seen = other
        interrupt.safe_point()
        time.sleep(_LOOK_SECONDS)


def _require_conditions(store: Store) -> None:
    """Stores that pass over conditions they don't know would let two writers in."""
    bucket = store.root.partition("/")[0]
    objects = store.objects
    if objects is None or (store.fs, bucket) in _proven:
        return
    probe = posixpath.join(store.root, f"{LOCK}-probe-{uuid.uuid4().hex}")
    tag = objects.put_if(probe, b"1", None)
    is_enforced = objects.put_if(probe, b"2", None) is None and objects.put_if(probe, b"3", f'"{"0" * 32}"') is None
    objects.delete(probe)
    if tag is None or not is_enforced:
        raise UserError(
            f"The object store of bucket '{bucket}' does not enforce conditional writes (If-None-Match, If-Match), so "
            "a run in it can have no lock; use one that does, such as S3 or a current MinIO."
        )
    _proven.add((store.fs, bucket))


@contextmanager
def _without_objects(store: Store) -> Iterator[None]:
    if store.fs.protocol == "memory":  # nobody but this process can see it
        if store.root in _in_memory:
            raise RunIsHeld(f"'{store.uri}' is being written by this process; wait for it.")
        _in_memory.add(store.root)
        try:
            yield
        finally:
            _in_memory.discard(store.root)
        return
    if os.environ.get(UNLOCKED) != "1":
        raise UserError(
            f"A run in '{store.uri}' can have no lock, because only S3-compatible stores are known here to write on "
            f"condition; use s3://…, or set {UNLOCKED}=1 and see to it yourself that it has one writer."
        )
    yield
