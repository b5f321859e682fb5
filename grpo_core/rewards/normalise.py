r"""The simple spellings of one answer made one: what a check compares first, before any computer algebra.

Only what cannot change the meaning: math and text delimiters around the whole answer, bold, trailing punctuation,
spacing commands, ``\dfrac``, currency before a number, thousands separators.
"""

import re
from fractions import Fraction

MAX_DIGITS = 100
"""Longest run of digits read as a number here; beyond it only equal texts are equal."""

_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_COMMAND_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|boxed|fbox)\s*\{")
_NEGATIVE_SPACE = re.compile(r"(?<!\\)\\!")
_SPACING = re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![a-z])|[~\s]+")
_SIZES = re.compile(r"\\(?:left|right)(?![a-z])\s*")
_FRACTION_COMMAND = re.compile(r"\\[dtc]frac(?![a-z])")
_LOOSE_SPACE = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")
_CURRENCY = re.compile(r"\A(?P<sign>[-+]?)(?:\\?\$|[€£¥])\s*(?=[-+.0-9])")
_CURRENCY_WORD = re.compile(r"(?<=[0-9])\s*(?:\\?\$|[€£¥]|dollars?|cents?|euros?|USD|EUR)\Z")
_DECIMAL = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+)(?P<part>\.[0-9]*)?"
    r"|(?P<bare>\.[0-9]+))(?P<exponent>[eE][-+]?[0-9]{1,3})?"
)
_QUOTIENT = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<top>[0-9]+)/(?P<bottom>[0-9]+)"
    r"|\\frac\s*(?:\{(?P<top_group>-?[0-9]+)\}|(?P<top_digit>[0-9]))\s*(?:\{(?P<bottom_group>[0-9]+)\}|(?P<bottom_digit>[0-9])))"
)


def bare(answer: str) -> str:
    """The answer without what stands around it: delimiters, bold, a wrapping command, trailing punctuation."""
    text = answer.replace("\u2212", "-").replace("{,}", ",")
    previous = None
    while text != previous:
        previous = text
        text = _unwrapped(text.strip().rstrip(".,;:\\").rstrip())
    return text


def plain(answer: str) -> str:
    """The answer in its plainest spelling, to be compared as text or read by ``number``; may be empty."""
    text = _NEGATIVE_SPACE.sub("", _SIZES.sub("", bare(answer)))
    text = _FRACTION_COMMAND.sub(r"\\frac", _SPACING.sub(" ", text)).replace(r"\%", "%").strip()
    if text.count("$") <= 1:  # more of them delimit pieces of math
        text = _CURRENCY_WORD.sub("", _CURRENCY.sub(r"\g<sign>", text))
    return _LOOSE_SPACE.sub("", text)


def number(text: str) -> Fraction | None:
    r"""The exact value of a plain number (``-1,234.50``, ``1.5e3``, ``3/4``, ``\frac{3}{4}``), else None.

    Takes the text of ``plain``. A number of more than ``MAX_DIGITS`` characters and a quotient by zero give None.
    """
    if len(text) > MAX_DIGITS:
        return None
    match = _DECIMAL.fullmatch(text)
    if match is not None:
        digits = match["bare"] or match["whole"].replace(",", "").replace(" ", "") + (match["part"] or "")
        value = Fraction(digits.rstrip(".") + (match["exponent"] or ""))
        return -value if match["sign"] == "-" else value
    match = _QUOTIENT.fullmatch(text)
    if match is None:
        return None
    top = int(match["top"] or match["top_group"] or match["top_digit"])
    bottom = int(match["bottom"] or match["bottom_group"] or match["bottom_digit"])
    if bottom == 0:
        return None
    return Fraction(-top if match["sign"] == "-" else top, bottom)


def _unwrapped(text: str) -> str:
    """Takes one pair of delimiters off the whole text, where there is one that spans it."""
    for start, end in _WRAPPERS:
        inner = text[len(start) : -len(end)]
        if len(text) > len(start) + len(end) and text.startswith(start) and text.endswith(end) and start not in inner:
            return inner
    command = _COMMAND_WRAPPER.match(text)
    if command is not None and text.endswith("}"):
        inner = text[command.end() : -1]
        if "{" not in inner and "}" not in inner:
            return inner
    return text
