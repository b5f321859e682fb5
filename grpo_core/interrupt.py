"""A polite request to stop: long work looks here at the moments when stopping loses nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(BaseException):
    """Work ended early because it was asked to. Not an Exception: no handler of failures may take it for one."""


_asked = False
_checks: list[Callable[[], None]] = []


def ask(wanted: bool = True) -> None:
    """Ask this process's work to stop at its next safe point, or take that back."""
    global _asked
    _asked = wanted


def asked() -> bool:
    """Whether a stop was asked for."""
    return _asked


@contextmanager
def checked(check: Callable[[], None]) -> Iterator[None]:
    """Inside, every safe point makes this check too, which raises what ends the work."""
    _checks.append(check)
    try:
        yield
    finally:
        _checks.remove(check)


def safe_point() -> None:
    """Mark a moment at which nothing is lost by stopping. Raises Stopped when that was asked for."""
    for check in _checks:
        check()
    if _asked:
        raise Stopped
