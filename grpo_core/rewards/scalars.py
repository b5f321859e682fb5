r"""One value: a number, an expression, a quantity with its unit, a percentage, a clock time, words."""

import re
from fractions import Fraction

from grpo_core.rewards.expression import parse, symbols
from grpo_core.rewards.kinds import Ratio, Reading, Scalar, Words
from grpo_core.rewards.number_words import words_value
from grpo_core.rewards.splitting import BrokenError
from grpo_core.rewards.tokens import Node, UnreadableError
from grpo_core.rewards.units import NOUN, without_unit

_PERCENT = re.compile(
    r"(?:\s*%|\s*(?<![A-Za-z])(?:percent|percentage|pct|per cent|prozent|pour cent|por ciento"
    r"|процентов)(?:age)?(?:\s+points?)?)\s*\Z",
    re.IGNORECASE,
)
_CHINESE_PERCENT = re.compile(r"\A百分之\s*(?=[0-9])")
GERMAN = re.compile(r"[-+]?[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+|[-+]?[0-9]{1,3}(?:\.[0-9]{3}){2,}")
_SPACED_THOUSANDS = re.compile(r"\A[-+]?[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_DOTS = re.compile(
    r"(?P<before>-?[0-9]*\.[0-9]*?)(?P<period>[0-9]{1,6}?)(?P=period)(?P=period)*\s*(?:\\ldots|\.\.\.)\s*"
)
_SCALED = re.compile(
    r"-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?\s*(?:(?:thousand|million|billion|trillion|dozen)(?![A-Za-z])|[万亿])"
)
_WORDY = re.compile(r"[A-Za-z\u00c0-\u9fff\uac00-\ud7af][A-Za-z\u00c0-\u9fff\uac00-\ud7af\s.,'\"()\-–:;/&0-9]*")
_CLOCK = re.compile(
    r"(?P<hours>[0-9]{1,2})(?::(?P<minutes>[0-5][0-9])(?::(?P<seconds>[0-5][0-9]))?)?\s*(?:(?P<half>[aApP])\s*\.?\s*[mM]\.?|(?P<mark>[hH]|o'clock))?"
)
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:\s*,?\s+(?P<year>[0-9]{4}))?"
_DATES = (
    re.compile(rf"{_MONTH}\s+(?:the\s+)?{_DAY}{_YEAR}", re.IGNORECASE),
    re.compile(rf"(?:the\s+)?{_DAY}\s+(?:of\s+)?{_MONTH}{_YEAR}", re.IGNORECASE),
)
TWO_WHOLES = re.compile(r"[-+]?[0-9]+,[0-9]+")


def read_scalar(text: str) -> Reading:
    text = text.strip()
    if text == "DNE":
        return Words("does not exist")
    if "\\ldots" in text or "..." in text or "\\mathbb" in text:
        repeated = _DOTS.fullmatch(text)
        if repeated is None:
            return Words(re.sub(r"\s", "", text))
        text = f"{repeated['before']}\\overline{{{repeated['period']}}}"
    if _SPACED_THOUSANDS.match(text):
        text = _SPACED_THOUSANDS.sub(lambda number: number[0].replace(" ", ""), text)
    if GERMAN.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    scaled = _SCALED.search(text)
    if scaled is not None:
        value = words_value(scaled[0].replace("\\", "").strip())
        if value is not None:
            text = f"{text[: scaled.start()]}{value}{text[scaled.end() :]}"
    percent = _PERCENT.search(text)
    chinese = _CHINESE_PERCENT.match(text)
    if percent is not None or chinese is not None:
        inner = text[: percent.start()] if percent is not None else text[chinese.end() :] if chinese is not None else ""
        amount = _tree(inner.replace(",", ".") if TWO_WHOLES.fullmatch(inner.strip()) else inner)
        if amount is not None:
            return Scalar(text, None, amount, percent=True)
    tree = _tree(text)
    stripped, unit = without_unit(text)
    amount = _tree(stripped) if unit is not None else None
    if amount is not None and symbols(amount):
        amount = None
    if tree is not None or amount is not None:
        return Scalar(text, tree, amount, unit if amount is not None else None)
    number = words_value(stripped if unit not in (None, NOUN) else text)
    if number is None and " " in text:
        first, _, last = text.rpartition(" ")
        number = words_value(first) if last.isalpha() else None
    if number is not None:
        return Scalar(text, Node("number", value=number))
    if _WORDY.fullmatch(text):
        return Words(" ".join(text.casefold().split()))
    raise UnreadableError("no known kind")


def _tree(text: str) -> Node | None:
    try:
        return parse(text)
    except BrokenError:
        raise
    except UnreadableError:
        return None


def read_date(text: str) -> Words | None:
    """``June 20``, ``20 June 2019``: a day of a month, whichever stands first."""
    date = next(filter(None, (dated.fullmatch(text) for dated in _DATES)), None)
    if date is None:
        return None
    return Words(f"{date['month'][:3].lower()} {int(date['day'])} {date['year'] or ''}".strip())


def read_clock(text: str) -> Ratio | None:
    match = _CLOCK.fullmatch(text)
    if match is None or not (match["minutes"] or match["half"]):
        return None
    hours = int(match["hours"])
    half = (match["half"] or "").lower()
    if hours > 24 or (half and not 1 <= hours <= 12):
        return None
    if half:
        hours = hours % 12 + (12 if half == "p" else 0)
    parts = (
        tuple(Scalar(part, Node("number", value=Fraction(part))) for part in text.split(":"))
        if not half and text.replace(":", "").isdigit()
        else ()
    )
    return Ratio(parts, hours * 3600 + int(match["minutes"] or 0) * 60 + int(match["seconds"] or 0))
