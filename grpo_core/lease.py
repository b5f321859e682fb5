"""The lock of a folder in an object store: an object that its owner writes again and again, for as long as it lives.

Taken by a put that goes through only where there is no such object, renewed and taken over by puts that go through only
on the very object that was seen, so of several who try one wins. Nobody's clock is compared with another's: how long a
lock has not been renewed is told by the store alone, and how long its owner may still trust it by the owner's own clock
alone (leases, Gray and Cheriton 1989). Whoever is late in renewing stops before the lease's end, and others wait for
longer than that.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from grpo_core import interrupt
from grpo_core.errors import UserError
from grpo_core.known_objects import KnownObjects
from grpo_core.objects import Objects, Seen
from grpo_core.process_identity import here, is_dead

LEASE_SECONDS = 60.0  # without a renewal for so long, a lock may be taken over
RENEW_SECONDS = 10.0
MARGIN_SECONDS = 10.0  # the owner stops so much sooner: its last put may still be on the way
LOCK = ".lock"  # lies in a folder that has one writer at a time
_ROUNDING_SECONDS = 2.0  # the store tells whole seconds


class LeaseLost(UserError):
    """This process may not write the folder any more: its lock is another's, or could be by now."""


@dataclass(frozen=True, slots=True)
class Holder:
    """What a lock says of its owner.

    Attributes:
        owner: a name that no other holder ever has.
        process: which process that is, as ``process_identity`` tells them apart.
        renewals: makes every renewal another object.
        free: given back; the rest says who had it last.
    """

    owner: str
    host: str
    pid: int
    since: str
    process: str | None
    lease_seconds: float
    renewals: int = 0
    free: bool = False

    def to_bytes(self) -> bytes:
        return (json.dumps(asdict(self), sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> "Holder":
        """Raises UserError when the lock was not written by us."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise UserError(
                f"The lock '{place}' can't be read; make sure that nobody writes there and remove that object."
            ) from error

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class Held(Exception):
    """Someone has the lock.

    Attributes:
        tag: of the lock as it was seen; another one later on says that its holder lives.
        free_in: seconds until it may be taken over if its holder is dead.
    """

    def __init__(self, holder: Holder, tag: str, free_in: float) -> None:
        super().__init__(str(holder))
        self.holder, self.tag, self.free_in = holder, tag, free_in


class Lease:
    """The lock at one path, held by this process from ``acquire`` to ``release``.

    Args:
        path: of the lock, as ``bucket/key``.
        uri: of the folder, for what is told to people.
    """

    def __init__(self, objects: Objects, path: str, uri: str) -> None:
        self._objects, self._path, self._uri = objects, path, uri
        self.known = KnownObjects(objects.fs)  # of what lies in the folder
        self._holder = Holder(
            owner=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            since=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
            process=here(),
            lease_seconds=LEASE_SECONDS,
        )
        self._tag = ""
        self._renewed_at = 0.0
        self._lost: str | None = None
        self._one_at_a_time = threading.Lock()
        self._ended = threading.Event()
        self._renewer = threading.Thread(target=self._keep, name="lease", daemon=True)

    @property
    def owner(self) -> str:
        """The name under which the lock is held; no two are alike."""
        return self._holder.owner

    def acquire(self) -> None:
        """Take the lock and renew it from now on.

        Raises:
            Held: someone else has it, or was quicker.
        """
        began = _now()
        seen = self._objects.read(self._path)
        if seen is not None and not self._may_take(seen):
            raise self._held(seen)
        tag = self._objects.put_if(self._path, self._holder.to_bytes(), seen.tag if seen else None)
        if tag is None:
            seen = self._objects.read(self._path)
            if seen is None or seen.data != self._holder.to_bytes():  # else only the answer was lost
                raise self._held(seen) if seen else LeaseLost(f"'{self._uri}' was removed by someone; try again.")
            tag = seen.tag
        self._tag, self._renewed_at = tag, began
        self._renewer.start()

    def require(self) -> None:
        """Costs nothing. Raises LeaseLost when this process may not write any more."""
        silent = _now() - self._renewed_at
        if self._lost is None and silent > self._holder.lease_seconds - MARGIN_SECONDS:
            self._lost = f"could not be renewed for {silent:.0f} s"
        if self._lost is not None:
            raise LeaseLost(
                f"The lock of '{self._uri}' {self._lost}, so this process has stopped writing; finished work is kept, "
                "go on with the same command."
            )

    def confirm(self) -> None:
        """Renew now: the store itself says that the lock is still ours. Raises LeaseLost."""
        self.require()
        with self._one_at_a_time:
            self._renew()
        self.require()

    def release(self) -> None:
        """Give it back, unless it is another's by now."""
        self._ended.set()
        self._renewer.join()
        if self._lost is None:
            given_back = replace(self._holder, renewals=self._holder.renewals + 1, free=True)
            with suppress(OSError):  # a store that is gone by now: the lease runs out by itself
                self._objects.put_if(self._path, given_back.to_bytes(), self._tag)

    def _may_take(self, seen: Seen) -> bool:
        holder = Holder.from_bytes(seen.data, self._path)
        return holder.free or is_dead(holder.process) or self._free_in(holder, seen) <= 0

    def _free_in(self, holder: Holder, seen: Seen) -> float:
        return holder.lease_seconds + _ROUNDING_SECONDS - seen.age_seconds

    def _held(self, seen: Seen) -> Held:
        holder = Holder.from_bytes(seen.data, self._path)
        return Held(holder, seen.tag, max(0.0, self._free_in(holder, seen)))

    def _keep(self) -> None:
        wait = RENEW_SECONDS
        while not self._ended.wait(wait) and self._lost is None:
            wait = RENEW_SECONDS
            try:
                with self._one_at_a_time:
                    self._renew()
            except Exception:  # whatever it is: without a renewal `require` stops the work in time
                wait = min(1.0, RENEW_SECONDS)

    def _renew(self) -> None:
        began = _now()
        renewed = replace(self._holder, renewals=self._holder.renewals + 1)
        tag = self._objects.put_if(self._path, renewed.to_bytes(), self._tag)
        if tag is None:
            seen = self._objects.read(self._path)
            found = Holder.from_bytes(seen.data, self._path) if seen else None
            if seen is None or found is None or found.owner != self.owner:
                self._lost = f"was taken over by {found}" if found else "was removed by someone"
                return
            tag, renewed = seen.tag, found  # an earlier put of ours whose answer was lost
        self._tag, self._holder, self._renewed_at = tag, renewed, began


class Borrowed:
    """In another process than the holder's, which has sent work there: every write asks the store who has the lock."""

    def __init__(self, objects: Objects, path: str, owner: str, uri: str) -> None:
        self.known, self.owner = objects, owner
        self._path, self._uri = path, uri

    def require(self) -> None:
        """One request. Raises LeaseLost when the lock is the sender's no longer."""
        seen = self.known.read(self._path)
        holder = Holder.from_bytes(seen.data, self._path) if seen else None
        if seen is None or holder is None or holder.owner != self.owner or holder.free:
            raise LeaseLost(
                f"The run '{self._uri}' is written by {holder or 'nobody'} now, so this worker has stopped."
            )

    confirm = require


_leases: dict[str, Lease | Borrowed] = {}  # by the folder that each is the lock of


@contextmanager
def holding(lease: Lease, folder: str) -> Iterator[None]:
    """Hold a lock: writes below the folder then ask it first, and so does work at its safe points. Raises Held."""
    lease.acquire()
    _leases[folder] = lease
    try:
        with interrupt.checked(lease.require):
            yield
    finally:
        del _leases[folder]
        lease.release()


@contextmanager
def borrowing(objects: Objects, folder: str, owner: str, uri: str) -> Iterator[None]:
    """Write below a folder for the one that holds its lock, in another process."""
    _leases[folder] = Borrowed(objects, f"{folder}/{LOCK}", owner, uri)
    try:
        yield
    finally:
        del _leases[folder]


def lease_over(path: str) -> Lease | Borrowed | None:
    """The lease by which this process writes a path; None where it holds none."""
    return next((lease for folder, lease in _leases.items() if path.startswith(f"{folder}/")), None)


def _now() -> float:
    """Seconds that also pass while the machine sleeps, where the system counts those."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
