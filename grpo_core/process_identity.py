"""Which process of which start of which machine: what tells that the owner of a lock is dead, without any doubt.

Linux tells enough for that; elsewhere nothing is said of other processes.
"""

import os
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def here() -> str | None:
    """This process's identity, or None where the system does not tell enough."""
    machine = _machine()
    started = _started(os.getpid())
    return None if machine is None or started is None else f"{machine}/{os.getpid()}/{started}"


def is_dead(identity: str | None) -> bool:
    """Whether that process was one of this machine and is gone; False whenever that can't be known."""
    if identity is None:
        return False
    machine, pid, started = identity.rsplit("/", 2)
    return machine == _machine() and _started(int(pid)) != started


def _machine() -> str | None:
    """This start of this machine, and the name space in which process numbers mean anything."""
    try:
        return f"{_BOOT.read_text().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process began, in ticks since the machine's start; None when there is none or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
