"""What a number in prose is part of: ``(2, 3)``, ``1 and 2``, ``3:4``, ``3:30 p.m.``, ``3 1/2``.

A pair or list counts only right behind a verb or sign that states it, so that an aside in brackets is none.
"""

import re

_CHARS = 200
_VALUE = (
    r"[-+]?(?:\\?\$)?(?:[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:\s?/\s?[0-9]+)?|\.[0-9]+)?"
    r"(?:√[0-9]+|π|∞|\\?pi(?![A-Za-z])|\\infty)?%?°?"
)
_GROUP = re.compile(
    rf"(?:\b(?:is|are|at|be|equals?|points?|vertex|interval|range|domain|pair|triple|set|origin|coordinates)|[=:为是])\s*"
    rf"(?P<value>[(\[{{]\s*(?=[^()\[\]{{}}]*[0-9]){_VALUE}(?:\s*[,;，]\s*{_VALUE}){{1,9}}\s*[)\]}}])"
)
_LIST = re.compile(
    rf"(?:\b(?:are|is|be)|[=:])\s+(?P<value>(?:[a-z]\s?=\s?)?(?=[-+$.0-9\\]){_VALUE}"
    rf"(?:(?:\s*,\s*(?:and|or)\s+|\s*,\s+|\s+(?:and|or)\s+)(?:[a-z]\s?=\s?)?(?=[-+$.0-9\\]){_VALUE}){{1,19}})(?=\s*(?:\.?\s*\Z|\.\s|\n))"
)
_RATIO = re.compile(
    r"(?<![0-9:.])(?P<value>[0-9]{1,9}(?:\.[0-9]+)?(?::[0-9]{1,9}(?:\.[0-9]+)?)+(?:\s?[ap]\.?m\b\.?)?)(?![0-9:])",
    re.IGNORECASE,
)
_ROUNDED = re.compile(
    rf"(?:\b(?:is|are|be|equals?)|[=:为是])\s*(?P<value>(?=\S){_VALUE}\s*(?:≈|~=)\s*[0-9]+(?:\.[0-9]+)?)"
)
_MIXED = re.compile(r"(?<![0-9./,])(?P<value>[-+\u2212]?[0-9]{1,9} [0-9]{1,9}/[0-9]{1,9})(?![0-9/])")


def together(text: str, at: int) -> str | None:
    """The pair, list, ratio, time or mixed number that the number at ``at`` is part of; None where it stands alone."""
    start = max(0, at - _CHARS)
    for pattern in (_GROUP, _LIST, _RATIO, _ROUNDED, _MIXED):
        for match in pattern.finditer(text, start):
            if match.start("value") < at < match.end("value"):
                return match["value"].strip()
    return None
