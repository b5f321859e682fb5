"""A polite request to stop: long work looks here at the moments when stopping loses nothing."""


class Stopped(BaseException):
    """Work ended early because it was asked to. Not an Exception: no handler of failures may take it for one."""


_asked = False


def ask(wanted: bool = True) -> None:
    """Ask this process's work to stop at its next safe point, or take that back."""
    global _asked
    _asked = wanted


def asked() -> bool:
    """Whether a stop was asked for."""
    return _asked


def safe_point() -> None:
    """Mark a moment at which nothing is lost by stopping. Raises Stopped when that was asked for."""
    if _asked:
        raise Stopped
