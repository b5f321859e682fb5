"""Processes in bubblewrap: no network, no file but Python's own, a scratch folder in memory, limits, and a sure end.

Each has namespaces of its own (processes, network, mounts, IPC, host name) and dies with the thread that started it,
also where that is killed. Started by root it runs as a user that nothing else has; else in a user namespace.
"""

import functools
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self

from grpo_core.errors import NotHere
from grpo_core.rewards.inside import program, wire
from grpo_core.rewards.syscalls import filter_program

_INSIDE = Path(__file__).with_name("inside")
_HARNESS = "/harness"
_MOUNTED = f"{_HARNESS}/grpo_core/rewards/inside"
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache")
_SCRATCH_BYTES = 64 << 20
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONPATH": _HARNESS,
    "PYTHONHASHSEED": "0",  # the order of a set must not decide a reward
    "PYTHONUTF8": "1",
    "MALLOC_ARENA_MAX": "2",  # every further arena takes 64 MiB of address space from the limit
}
_INSTALL = "install it with: apt-get install bubblewrap"
_FIRST_USER = 1 << 31
_USERS_PER_PROCESS = 511
_ERROR_BYTES = 2_000
_SNAPSHOT_SECONDS = 0.05
_started = itertools.count()


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one sandbox: seconds, bytes of memory, processes and threads together, and bytes of output or a message."""

    seconds: float
    memory_bytes: int
    processes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox's processes take: CPU seconds, resident bytes, and seconds that they waited for a free core."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    waited_seconds: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.cpu_seconds + other.cpu_seconds,
            self.memory_bytes + other.memory_bytes,
            self.waited_seconds + other.waited_seconds,
        )


class Sandbox:
    """One sandboxed Python, running ``main`` of a module of ``inside``. Leaving the context kills all of it.

    Args:
        module: of ``inside``.
        orders: what ``confine`` returns there; plain data.
        limits: see ``Limits``.
        passed: descriptors that the process gets, in this order; ``confine`` returns their numbers there.
        standard_input, standard_output: descriptors, or None for nothing.
    """

    def __init__(
        self,
        module: ModuleType,
        orders: tuple[object, ...],
        limits: Limits,
        passed: Sequence[int] = (),
        standard_input: int | None = None,
        standard_output: int | None = None,
    ) -> None:
        bounds = (limits.memory_bytes, limits.processes, int(limits.seconds) + 2, _SCRATCH_BYTES, _own_user())
        script = f"from {module.__name__} import main; main()"
        with ExitStack() as stack:
            descriptor = stack.enter_context(MemoryFile(wire.pack(((*bounds, tuple(passed)), orders))))
            rules = filter_program()
            filtered = [] if rules is None else [stack.enter_context(MemoryFile(rules))]
            seccomp = [argument for number in filtered for argument in ("--seccomp", str(number))]
            self.process = subprocess.Popen(
                [*_bubblewrap(), *seccomp, *_python(), "-c", script, str(descriptor)],
                stdin=subprocess.DEVNULL if standard_input is None else standard_input,
                stdout=subprocess.DEVNULL if standard_output is None else standard_output,
                stderr=subprocess.PIPE,
                pass_fds=[descriptor, *filtered, *passed],
                env=_ENVIRONMENT,
                bufsize=0,
            )

    def usage(self) -> Usage:
        """What its processes take now, together."""
        return sum((_usage(pid) for pid in _below(self.process.pid)), Usage())

    def failure(self) -> str:
        """Ends it and returns what was said on standard error before the code of a response could say anything."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        said = (self.process.stderr.read(_ERROR_BYTES) or b"").decode("utf-8", "replace").strip()
        return said.splitlines()[-1] if said else f"it ended with status {self.process.returncode}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


class MemoryFile:
    """A descriptor of an unnamed file in memory that holds ``data``, at its start; closed on leaving the context."""

    def __init__(self, data: bytes) -> None:
        self._descriptor = os.memfd_create("orders")
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


@functools.cache
def why_unusable() -> str | None:
    """Why no sandbox can run here, as a clause, or None where one does; tried once a process."""
    if sys.platform != "linux":
        return f"needs Linux, and this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return f"needs bubblewrap, which is not installed; {_INSTALL}"
    ready, ready_end = os.pipe()
    try:
        with Sandbox(program, ((("",),),), Limits(10.0, 1 << 30, 8, 1 << 10), [ready_end]) as trial:
            os.close(ready_end)
            if os.read(ready, 1):
                return None
            return (
                f"needs bubblewrap, which can't make its namespaces here ({trial.failure()}); allow them to this user"
            )
    finally:
        os.close(ready)


def require() -> None:
    """Does nothing where sandboxes run.

    Raises:
        NotHere: elsewhere, with the mend.
    """
    why = why_unusable()
    if why is not None:
        raise NotHere(f"The code reward {why}.")


def _is_rooted() -> bool:
    """Whether to start as root and become another user inside; else a user namespace does what root would."""
    return os.geteuid() == 0 and _mapped_users() > 65_535


def _mapped_users() -> int:
    return max(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())


def _own_user() -> int | None:
    """A user for one sandbox, so that the kernel counts its processes apart from all others."""
    if not _is_rooted():
        return None
    number = os.getpid() * _USERS_PER_PROCESS + next(_started) % _USERS_PER_PROCESS
    mapped = _mapped_users()
    first = min(_FIRST_USER, mapped // 2)
    return first + number % (mapped - first - 1)


@functools.cache
def _python() -> tuple[str, ...]:
    """The interpreter below any virtual environment, with its options, up to what it is to run."""
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    return str(python if python.exists() else Path(sys.executable).resolve()), "-s", "-S", "-P", "-B"


@functools.cache
def _bubblewrap() -> tuple[str, ...]:
    """bubblewrap with its arguments."""
    bubblewrap = shutil.which("bwrap") or "bwrap"
    command = [bubblewrap, "--die-with-parent", "--new-session"]
    if _is_rooted():
        command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-all"]
    for place in (*_LIBRARIES, sys.base_prefix, _MOUNTED):
        for folder in [*reversed(Path(place).parents)][1:]:
            command += ["--perms", "0755", "--dir", str(folder)]  # not as closed as the real one, /root say
    for place in dict.fromkeys((*_LIBRARIES, sys.base_prefix)):
        command += ["--ro-bind-try", place, place]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for packages in (f"lib/{version}/site-packages", "lib/python3/dist-packages", f"local/lib/{version}/dist-packages"):
        if Path(sys.base_prefix, packages).is_dir():
            command += ["--tmpfs", str(Path(sys.base_prefix, packages))]
            command += ["--remount-ro", str(Path(sys.base_prefix, packages))]
    command += ["--ro-bind", str(_INSIDE), _MOUNTED, "--dev", "/dev"]
    if "--size" in subprocess.run([bubblewrap, "--help"], capture_output=True, text=True).stdout:
        for place in ("/tmp", "/dev/shm"):  # the second for the locks of multiprocessing
            command += ["--perms", "1777", "--size", str(_SCRATCH_BYTES), "--tmpfs", place]
    else:
        command += ["--dir", "/tmp"]  # an older bubblewrap can't bound it: then there is no place to write at all
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
    return tuple(command)


_snapshot: tuple[float, dict[int, list[int]]] = (0.0, {})
_snapshot_lock = threading.Lock()


def _below(ancestor: int) -> list[int]:
    """A process and all its descendants."""
    global _snapshot
    with _snapshot_lock:
        if time.monotonic() - _snapshot[0] > _SNAPSHOT_SECONDS:
            children: dict[int, list[int]] = {}
            for name in os.listdir("/proc"):
                if name.isdecimal() and (fields := _fields(int(name))):
                    children.setdefault(int(fields[1]), []).append(int(name))
            _snapshot = (time.monotonic(), children)
        children = _snapshot[1]
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return found


def _fields(pid: int) -> list[str]:
    """The numbers of /proc/PID/stat from the state on; none for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _usage(pid: int) -> Usage:
    fields = _fields(pid)
    try:
        waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError, IndexError):
        waited = 0.0  # gone, or a kernel that does not keep this figure
    if not fields:
        return Usage()
    ticks = sum(int(field) for field in fields[11:15])  # its own and its dead children's, user and system
    memory = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), memory, waited)
