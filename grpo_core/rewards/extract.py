"""Finds the final answer in a response: the last filled box, else a ``####`` line, else the last number.

Everything here is one pass over the text, so a response of a megabyte costs milliseconds whatever it holds.
"""

import re
from collections import deque
from dataclasses import dataclass

_BOX_TOKEN = re.compile(
    r"(?P<box>\\{1,2}(?:boxed|fbox)\s*\{)"
    r"|(?P<open>\{)"
    r"|(?P<close>\})"
    r"|(?P<blank>\\[,;:!\s]|[\s~$])"
    r"|(?P<ink>\\.|[^\\{}\s~$]+|\\)",
    re.DOTALL,
)

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(
    r"(?P<sign>(?<![0-9A-Za-z)\]}%])[-+\u2212])?"
    r"(?:\\?[$€£¥]\s?)?"
    rf"(?:\\[dt]?frac\{{(?P<top>[0-9]{{1,40}})\}}\{{(?P<bottom>[0-9]{{1,40}})\}}"
    rf"|(?P<number>{_DIGITS})"
    r"(?:(?P<exponent>[eE][-+]?[0-9]{1,3})(?![0-9A-Za-z])|\s?/\s?(?P<denominator>[0-9]+))?)"
)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(?P<answer>\S[^\n]*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of an answer, and whether it stood in a box."""

    answer: str
    boxed: bool


@dataclass(slots=True)
class _Box:
    """A closed, filled box as offsets into the text: the whole command, and the content it counts for."""

    start: int
    end: int
    content_start: int
    content_end: int


def last_boxed(text: str) -> str | None:
    r"""The content of the last filled ``\boxed{…}`` or ``\fbox{…}`` of ``text``, stripped; None where there is none.

    Braces must balance, ``\{`` and ``\}`` are no braces, a box of blanks does not count, and a box never closed is no
    box. Of nested boxes the outer one counts (its content is the whole answer), unless it holds just the inner one.
    """
    box = _last_box(text)
    return None if box is None else text[box.content_start : box.content_end].strip()


def final_answer(text: str) -> Extracted | None:
    """The final answer of a response, or None where no answer can be read.

    The last filled box; else the text of the last ``#### x`` line; else the last number, written plainly: thousands
    separators, currency and percent signs are dropped, ``\\frac{3}{4}`` becomes ``3/4``.
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return Extracted(boxed, True)
    line = _last_match(_HASHES, text)
    if line is not None:
        return Extracted(line["answer"].strip(), False)
    number = last_number(text)
    return None if number is None else Extracted(number, False)


def last_number(text: str) -> str | None:
    """The last number of ``text`` as ``-1234.5``, ``3/4`` or ``1.5e3``; None where there is no digit."""
    match = _last_match(_NUMBER, text)
    if match is None:
        return None
    sign = "-" if match["sign"] in ("-", "\u2212") else ""
    if match["top"]:
        return f"{sign}{match['top']}/{match['bottom']}"
    number = match["number"].replace(",", "")
    if match["denominator"]:
        return f"{sign}{number}/{match['denominator']}"
    return f"{sign}{number}{match['exponent'] or ''}"


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def _last_box(text: str) -> _Box | None:
    """One pass with a stack of open braces; each stretch of text is looked at a bounded number of times."""
    opened: list[tuple[int, int] | None] = []
    last: _Box | None = None
    last_ink = -1
    for token in _BOX_TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "ink":
            last_ink = token.start()
        elif kind == "box":
            opened.append((token.start(), token.end()))
        elif kind == "open":
            opened.append(None)
        elif kind == "close" and opened:
            start = opened.pop()
            if start is None or last_ink < start[1]:
                continue
            whole = _Box(start[0], token.end(), start[1], token.start())
            if last is not None and _holds_just(text, whole, last):
                whole.content_start, whole.content_end = last.content_start, last.content_end
            last = whole
    return last


def _holds_just(text: str, outer: _Box, inner: _Box) -> bool:
    return (
        inner.start >= outer.content_start
        and not text[outer.content_start : inner.start].strip()
        and not text[inner.end : outer.content_end].strip()
    )
