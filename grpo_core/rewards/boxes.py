r"""Filled ``\boxed{…}`` of a text, which of them count, and which are one answer together.

One pass, so a response of a megabyte costs milliseconds whatever it holds. Boxes side by side
(``\boxed{1} and \boxed{2}``) are one answer of several values: a hedge of two values is not paid for one of them.
A box that is denied ("not \boxed{42}") does not count.
"""

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<box>\\{1,2}(?:boxed|fbox)\s*\{)"
    r"|(?P<open>\{)"
    r"|(?P<close>\})"
    r"|(?P<blank>\\[,;:!\s]|[\s~$]+)"
    r"|(?P<ink>\\.|[^\\{}\s~$]+|\\)",
    re.DOTALL,
)
_COMMAND = re.compile(r"\\(?:boxed|fbox)")
_BETWEEN = re.compile(
    r"(?:\s|\$|\\[()\[\],;: ]|\*|[,;.&]|\\\\|\\q?quad|\\(?:text|mbox)\s*\{[^{}]{0,40}\}|(?:and|or|also|und"
    r"|oder|et|ou|as well as)(?![A-Za-z])"
    r"|[和或与及、，；]|for part \(?[a-z0-9]\)?|[A-Za-z](?:_\{?[A-Za-z0-9]{1,3}\}?)?\s*(?:=|\\in)"
    r"|\([A-Za-z, ]{1,12}\)\s*=)*"
)
_LONGEST_BETWEEN = 80
_DENIED_BEFORE = re.compile(
    r"(?:\bnot|\bcannot|n't|n’t|\bnever|\bneither|\bnor|\brather than|\binstead of|\bunlike"
    r"|不是|并非|不等于|\\ne(?:q)?)"
    r"(?:\s|\$|\\[(\[]|:|\*|\b(?:equal|to|be|simply|just|the|really|actually|exactly|answer|是)\b)*\Z",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"\A(?:\s|\$|\\[)\]]|\*|[,.])*(?:(?:is|was|would be|seems|looks)\s+(?:not|wrong|incorrect|false"
    r"|a\s+wrong|an?\s+incorrect)|isn't|不对|是错的|错误)",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Box:
    """A closed, filled box as offsets into the text: the whole command, and the content it counts for."""

    start: int
    end: int
    content_start: int
    content_end: int


def filled_boxes(text: str) -> tuple[list[Box], int]:
    r"""The filled, closed boxes of ``text`` in order, and where the last one that is never closed starts (-1: none).

    ``\{`` and ``\}`` are no braces and a box of blanks does not count. Of nested boxes the outer one counts (its
    content is the whole answer), unless it holds just the inner one.
    """
    first = _COMMAND.search(text)
    if first is None:
        return [], -1
    opened: list[tuple[int, int] | None] = []
    boxes: list[Box] = []
    last_ink = -1
    for token in _TOKEN.finditer(text, first.start()):
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
            whole = Box(start[0], token.end(), start[1], token.start())
            if boxes and _holds_just(text, whole, boxes[-1]):
                whole.content_start, whole.content_end = boxes[-1].content_start, boxes[-1].content_end
            while boxes and boxes[-1].start >= whole.start:
                boxes.pop()
            boxes.append(whole)
    return boxes, max((start[0] for start in opened if start is not None), default=-1)


def boxed_answers(text: str, boxes: list[Box]) -> list[Box]:
    """The boxes that together are the final answer: the last that is not denied, and those right before it."""
    kept = [box for box in boxes[-50:] if not _denied(text, box)]
    if not kept:
        return []
    answers = [kept[-1]]
    for box in reversed(kept[:-1]):
        between = text[box.end : answers[0].start]
        if len(between) > _LONGEST_BETWEEN or not _BETWEEN.fullmatch(between):
            break
        answers.insert(0, box)
    return answers


def content(text: str, box: Box) -> str:
    """What stands in the box, stripped."""
    return text[box.content_start : box.content_end].strip()


def _denied(text: str, box: Box) -> bool:
    before = text[max(0, box.start - 60) : box.start]
    return bool(_DENIED_BEFORE.search(before) or _DENIED_AFTER.match(text[box.end : box.end + 60]))


def _holds_just(text: str, outer: Box, inner: Box) -> bool:
    return (
        inner.start >= outer.content_start
        and not text[outer.content_start : inner.start].strip()
        and not text[inner.end : outer.content_end].strip()
    )
