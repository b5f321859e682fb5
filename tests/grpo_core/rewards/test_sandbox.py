"""Sandboxes: what a process in one can reach, and that none outlives its check or its parent."""

import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from code_cases import ADD, CHEATS

from grpo_core.errors import NotHere
from grpo_core.rewards import sandbox
from grpo_core.rewards.code import CodeConfig, code_reward
from grpo_core.rewards.code_check import check_function
from grpo_core.rewards.sandbox import Limits
from grpo_core.rewards.syscalls import filter_program

ROOT = Path(__file__).resolve().parents[3]
LIMITS = Limits(20.0, 1 << 29, 16, 1 << 20)
needs_sandbox = pytest.mark.skipif(
    sandbox.why_unusable() is not None, reason=f"the code reward {sandbox.why_unusable()}"
)


def told(code: str) -> object:
    """What ``f()`` returns inside."""
    found = check_function([(code,)], ["raise ValueError(repr(f()))"], (), "", "f", LIMITS)
    assert found.detail.startswith("ValueError: "), found
    return eval(found.detail.removeprefix("ValueError: ").partition(" at raise ")[0])


@needs_sandbox
def test_nothing_of_this_machine_is_inside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    code = f"""
import os, socket, sys
def f():
    names = sorted(os.environ)
    interfaces = [name for _, name in socket.if_nameindex()]
    places = {str(tmp_path)!r}, {str(ROOT / "tests")!r}, "/proc/1", "/home", "/etc/hostname"
    visible = [place for place in places if os.path.exists(place)]
    return names, interfaces, visible, sys.argv, os.listdir("/tmp"), os.listdir("/harness/grpo_core/rewards")
"""
    names, interfaces, visible, arguments, scratch, harness = told(code)  # type: ignore[misc]
    assert set(names) <= {*sandbox._ENVIRONMENT, "PWD", "LC_CTYPE"}
    assert interfaces == ["lo"]
    assert visible == []
    assert arguments == ["-c"]
    assert scratch == []
    assert harness == ["inside"]


@needs_sandbox
@pytest.mark.parametrize("held", [0, 100], ids=["few are open here", "many are open here"])
def test_open_descriptors_are_the_standard_ones_and_the_channel(held: int) -> None:
    code = """
import os
def f():
    kinds = []
    for number in range(64):
        try: kinds.append(os.fstat(number).st_mode >> 12)
        except OSError: pass
    return kinds
"""
    with ExitStack() as stack:
        for _ in range(held):
            stack.callback(os.close, os.dup(0))
        assert told(code) == [0o2, 0o2, 0o2, 0o1, 0o1]  # three character devices, two pipes


@needs_sandbox
@pytest.mark.parametrize("place", ["/", "/usr/lib", "/dev", "/harness", sys.base_prefix])
def test_only_the_scratch_folder_can_be_written(place: str) -> None:
    code = (
        f"import os\ndef f():\n    try: open(os.path.join({place!r}, 'x'), 'w')\n    except OSError as e: return True"
    )
    assert told(code) is True


@needs_sandbox
def test_processes_are_limited_in_each_sandbox_apart() -> None:
    code = """
import os, time
def f():
    number = 0
    try:
        while number < 100:
            if os.fork() == 0: time.sleep(60)
            number += 1
    except OSError: pass
    return number
"""
    assert 1 <= told(code) < 16  # type: ignore[operator]


@needs_sandbox
def test_no_privilege_is_left() -> None:
    code = """
import ctypes, os
def f():
    libc = ctypes.CDLL(None, use_errno=True)
    became_root = libc.setuid(0) if os.getuid() else -1
    refused = [became_root, libc.mount(b"x", b"/tmp", b"tmpfs", 0, None), libc.sethostname(b"x", 1)]
    return refused, libc.prctl(39, 0, 0, 0, 0)
"""
    assert told(code) == ([-1, -1, -1], 1)  # 39: whether exec can give new privileges is off


@needs_sandbox
@pytest.mark.skipif(filter_program() is None, reason="no numbers of system calls for this machine")
def test_memory_beside_the_limits_and_new_namespaces_are_refused() -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def errno(number): return ctypes.get_errno() if number < 0 else 0
def f():
    found = [errno(libc.shmget(0, 4096, 0o1600)), errno(libc.unshare(0x10000000)), errno(libc.msgget(0, 0o1600))]
    try: os.memfd_create("x")
    except OSError as error: found.append(error.errno)
    return found
"""
    assert told(code) == [1, 1, 1, 1]


def test_each_rule_of_the_filter_goes_on_to_one_that_is_there() -> None:
    assert filter_program("riscv64") is None
    for machine in ("x86_64", "aarch64"):
        program = filter_program(machine)
        assert program is not None
        lines = list(struct.iter_unpack("=HBBI", program))
        assert lines[-1] == (0x06, 0, 0, 0x7FFF0000)  # return, allow
        assert all(n + 1 + max(lines[n][1], lines[n][2]) < len(lines) for n in range(len(lines) - 1))


CHILD = """
import sys, threading
from grpo_core.rewards.code_check import check_function
from grpo_core.rewards.sandbox import Limits
from grpo_core.rewards.syscalls import filter_program
code = "import os\\ndef add(a, b):\\n    os.fork()\\n    os.setsid()\\n    while True: pass"
run = lambda: check_function([(code,)], ["add(1, 2)"], (), "", "add", Limits(60.0, 1 << 29, 16, 1 << 20))
threading.Thread(target=run).start()
run()
"""


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def wait_until(condition: object, seconds: float = 60.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


@needs_sandbox
def test_nothing_outlives_a_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", CHILD], cwd=ROOT)
    try:
        # Two checks, each of two sandboxes of bwrap, its reaper and Python, and a fork of the code's.
        wait_until(lambda: len(descendants(parent.pid)) == 14)
        processes = descendants(parent.pid)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    wait_until(lambda: all_gone(processes))


@needs_sandbox
def test_nothing_outlives_its_check() -> None:
    code = """
import os
def add(a, b):
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            while True: pass
    return a + b
"""
    before = set(descendants(os.getpid()))
    found = code_reward(CodeConfig())  # made first: a reward alone starts nothing
    assert set(descendants(os.getpid())) <= before
    assert check_function([(code,)], ADD, (), "", "add", LIMITS).verdict == "ok"
    assert set(descendants(os.getpid())) <= before
    assert callable(found)


@needs_sandbox
def test_memory_of_all_its_processes_together_is_limited() -> None:
    limits = Limits(60.0, 300 << 20, 16, 1 << 20)
    assert (
        check_function([(CHEATS["memory in children"],)], ADD, (), "", "add", limits).detail == "over the memory limit"
    )


def test_without_bubblewrap_the_mend_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sandbox, "why_unusable", sandbox.why_unusable.__wrapped__)
    monkeypatch.setattr(sandbox, "_bubblewrap", sandbox._bubblewrap.__wrapped__)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHere, match=r"needs bubblewrap, which is not installed; .* apt-get install bubblewrap\.$"):
        code_reward(CodeConfig())
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(NotHere, match=r"can't make its namespaces here \(bwrap: No permissions"):
        code_reward(CodeConfig())
