"""Cutting text at separators that stand outside all brackets."""

import re

from grpo_core.rewards.tokens import UnreadableError


class BrokenError(UnreadableError):
    """Brackets do not match: nothing else will read this either."""


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    parts: list[str] = []
    start = 0
    for match in top_matches(text, separator):
        parts.append(text[start : match.start()].strip())
        start = match.end()
    return [*parts, text[start:].strip()]


def top_matches(text: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Matches of ``pattern`` outside all brackets.

    Raises:
        BrokenError: brackets do not match. Round and square ones may be mixed: half-open intervals do so.
    """
    depths: list[int] = []
    depth = braces = 0
    for character in text:
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character in "{}":
            braces += 1 if character == "{" else -1
        if depth < 0 or braces < 0:
            raise BrokenError("brackets do not match")
        depths.append(depth + braces)
    if depth or braces:
        raise BrokenError("brackets do not match")
    return [match for match in pattern.finditer(text) if not depths[match.start()]]


def spans(text: str) -> bool:
    """Whether the first bracket of ``text`` is closed by its last, not before."""
    depth = 0
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if not depth:
                return place == len(text) - 1
    return False
