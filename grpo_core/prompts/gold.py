r"""From a cell of a data set to text, and from that text to the gold answer.

GSM8K writes a worked solution and then ``#### 1,234``; MATH ends its solution with ``\boxed{...}``; most others keep
the bare answer in a column of its own.
"""

import math
import re
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from grpo_core.rewards.extract import last_boxed

GoldFormat = Literal["auto", "plain", "gsm8k", "boxed"]

_HASHES = "####"
_BOX = re.compile(r"\\(?:boxed|fbox)\b")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s+([^\s${}\\]+)")
_FRAC = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_RATIONAL = re.compile(r"[-+]?\d{1,40}(?:\.\d{1,40}|/\d{1,40})?")
_NUMBER_WITH_COMMAS = re.compile(r"[-+]?\$?\d[\d,]*(?:\.\d+)?%?")


class NotTextError(Exception):
    """The value of a cell is a list or a record and can be no prompt and no gold. The message says which."""


def as_text(value: object) -> str | None:
    """The text of a cell, stripped; None for null, NaN and an infinity.

    Whole floats lose their ``.0`` (a JSON file that holds ``51.0`` means 51). Lone surrogates, which no UTF-8 file can
    hold, become U+FFFD.

    Raises:
        NotTextError: the cell holds bytes, a list or a record.
    """
    if value is None:
        return None
    if isinstance(value, str):
        if not value.isascii():
            value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value.strip()
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, bool | int | Decimal | date):
        return str(value)
    raise NotTextError(f"a {type(value).__name__}, not text")


def extract_gold(text: str, gold_format: GoldFormat) -> str | None:
    r"""The gold answer in ``text``, stripped; None when there is none.

    ``gsm8k``: the rest of the line after the last ``####``, a number without its commas. ``boxed``: the last non-empty
    ``\boxed{}`` or ``\fbox{}``, nested braces balanced; MATH's brace-less ``\boxed 2`` counts. ``plain``: the text as
    it is. ``auto`` decides by the text: ``####`` in it, else a box in it, else plain.
    """
    if gold_format == "auto":
        gold_format = "gsm8k" if _HASHES in text else "boxed" if _BOX.search(text) else "plain"
    if gold_format == "gsm8k":
        return _after_hashes(text)
    if gold_format == "boxed":
        return _last_box(text)
    return text.strip() or None


def gold_key(gold: str) -> str:
    r"""Equal for golds that are plainly one answer, whatever their spacing, case, or way to write a number.

    ``19`` and ``19.0`` are one, and so are ``1/2``, ``0.5`` and ``\frac{1}{2}``. A quick look; rewards know more.
    """
    bare = "".join(gold.split()).casefold()
    plain = _FRAC.sub(r"\1/\2", bare.replace(",", "") if _NUMBER_WITH_COMMAS.fullmatch(bare) else bare)
    if not _RATIONAL.fullmatch(plain) or re.search(r"/0+$", plain):
        return bare
    return str(Fraction(plain))


def _after_hashes(text: str) -> str | None:
    _, found, rest = text.rpartition(_HASHES)
    lines = rest.strip().splitlines()
    if not found or not lines:
        return None
    gold = lines[0].strip()
    # Only a number's commas: those of "(1, 2)" are part of the answer.
    return gold.replace(",", "") if _NUMBER_WITH_COMMAS.fullmatch(gold) else gold


def _last_box(text: str) -> str | None:
    found = last_boxed(text)
    if found is None:
        bare = _BARE_BOX.findall(text)
        found = bare[-1].rstrip(".,;") if bare else ""
    return found.strip() or None
