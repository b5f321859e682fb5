"""Texts as words, for rewards that compare them."""

import re
from collections.abc import Hashable, Sequence

# Numbers keep their point; scripts written without spaces count by the character.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|\d+(?:[.,]\d+)+|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)


def words(text: str) -> list[str]:
    """The words and numbers of a text in order, case folded, without punctuation."""
    return _WORD.findall(text.casefold())


def ngrams(items: Sequence[Hashable], n: int) -> list[tuple[Hashable, ...]]:
    """Every run of ``n`` items in order; the whole as one run when there are fewer, and none of nothing."""
    if not items:
        return []
    return [tuple(items[start : start + n]) for start in range(max(1, len(items) - n + 1))]
