"""The first thing a sandboxed process does: read its orders, limit itself, and give up what it no longer needs."""

from __future__ import annotations

import builtins
import os
import resource
import sys

from grpo_core.rewards.inside import wire

TYPE_CHECKING = False  # importing typing would take a third of the start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType
    from typing import Any

_OPEN_FILES = 64
_FIRST_FREE = 3  # after the standard three
_RECURSION = 1100  # the harness's own frames lie below those of the code, which may count on the usual 1000


def confine() -> tuple[list[int], tuple[Any, ...]]:
    """Reads the orders from the descriptor in ``argv[1]``, sets the limits found there, silences standard error.

    Started by root it becomes a user that owns no file and no other process, because the kernel excepts root from its
    limit on processes; with the user go all capabilities. Returned are the descriptors that were passed, numbered from
    3 on (what code finds open, and so its verdict, doesn't depend on what its parent holds), and the orders' rest.
    """
    descriptor = int(sys.argv[1])
    with open(descriptor, "rb") as orders:
        (memory_bytes, processes, cpu_seconds, file_bytes, user, passed), rest = wire.unpack(orders.read())
    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 2)
    os.close(silent)
    descriptors = _renumbered(passed)
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, processes),
    ):
        resource.setrlimit(limit, (value, value))
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    sys.setrecursionlimit(_RECURSION)
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)  # Python without its site module lacks them
    del sys.argv[1:]
    arguments: tuple[Any, ...] = rest
    return descriptors, arguments


def _renumbered(descriptors: Sequence[int]) -> list[int]:
    copies = [os.dup(descriptor) for descriptor in descriptors]  # each gets the lowest free number: they only rise
    for descriptor in descriptors:
        os.close(descriptor)
    numbers = list(range(_FIRST_FREE, _FIRST_FREE + len(copies)))
    for copy, number in zip(copies, numbers, strict=True):
        if copy != number:
            os.dup2(copy, number, inheritable=False)
            os.close(copy)
    return numbers


def first_compiled(alternatives: Sequence[Sequence[str]]) -> list[CodeType]:
    """The parts of the first alternative that compiles, compiled; with a fixed seed for one that draws random numbers.

    Raises:
        Exception: why the first does not compile, where none does.
    """
    failures: list[Exception] = []
    for sources in alternatives:
        try:
            compiled = [compile(source, "<code>", "exec", dont_inherit=True) for source in sources]
        except Exception as error:
            failures.append(error)
            continue
        seed_random(*sources)
        return compiled
    raise failures[0]


def seed_random(*sources: str) -> None:
    """Makes a source that draws random numbers draw the same ones in every check."""
    if any("random" in source for source in sources):
        import random

        random.seed(0)
