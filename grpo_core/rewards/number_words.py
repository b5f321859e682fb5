"""Numbers written as words, English or Chinese: ``twenty-one``, ``three quarters``, ``二分之一``."""

import re
from fractions import Fraction

_NAMES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TEN_NAMES = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: value for value, word in enumerate(_NAMES.split())} | {
    word: 20 + 10 * n for n, word in enumerate(_TEN_NAMES.split())
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "twelfth": 12, "hundredth": 100,
}  # fmt: skip
_PARTS |= {word + "s": value for word, value in _PARTS.items()} | {"halves": 2}
_CHINESE_DIGITS = {digit: value for value, digit in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0}
_CHINESE_TENS = {"十": 10, "百": 100, "千": 1000}
_CHINESE = re.compile("[零〇一二两三四五六七八九十百千万亿]+")
_AND_A_PART = re.compile(r"(?<=[a-z]) and an? (half|third|quarter)\Z")
_DIGITS_AND_SCALE = re.compile(r"(?P<number>-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?)\s*(?P<scale>[a-z]+|[万亿])")


def words_value(text: str) -> Fraction | None:
    """The number that ``text`` spells, or None; digits with a scale count too (``3 million``, ``3万``)."""
    text = text.strip().lower()
    if len(text) > 100:
        return None
    scaled = _DIGITS_AND_SCALE.fullmatch(text)
    if scaled is not None:
        scale = {**_SCALES, "hundred": 100, "dozen": 12, "万": 10**4, "亿": 10**8}.get(scaled["scale"])
        return None if scale is None else Fraction(scaled["number"].replace(",", "")) * scale
    if text and not text.isascii():
        return _chinese(text)
    and_a_part = _AND_A_PART.search(text)
    if and_a_part is not None:
        whole = words_value(text[: and_a_part.start()])
        return None if whole is None else whole + Fraction(1, _PARTS[and_a_part[1]])
    words = [word for word in re.split(r"[\s-]+", text) if word not in ("and", "a", "")] if text else []
    if words and words[0] in ("minus", "negative"):
        value = _english(words[1:])
        return None if value is None else -value
    return _english(words)


def _english(words: list[str]) -> Fraction | None:
    if words and words[-1] in _PARTS:
        whole = Fraction(0)
        top = words[:-1]
        for place in range(len(top) - 1, 0, -1):  # two and one half: what stands before the last count is a whole
            first, last = _whole(top[:place]), _whole(top[place:])
            if first is not None and last is not None and last < _PARTS[words[-1]] and _whole(top) is None:
                whole, top = Fraction(first), top[place:]
                break
        count = _whole(top) if top else 1
        return None if count is None else whole + Fraction(count, _PARTS[words[-1]])
    value = _whole(words)
    return None if value is None else Fraction(value)


def _whole(words: list[str]) -> int | None:
    if not words:
        return None
    total = group = 0
    last = 10**4  # what may follow: a ten takes a unit, nothing else does
    for word in words:
        if word in _SMALL:
            value = _SMALL[word]
            if not ((value < 10 and last >= 20 and last % 10 == 0) or last >= 100):
                return None
            group, last = group + value, value or 1
        elif word == "hundred":
            group, last = max(group, 1) * 100, 100
        elif word in _SCALES:
            total, group, last = total + max(group, 1) * _SCALES[word], 0, 1000
        else:
            return None
    return total + group


def _chinese(text: str) -> Fraction | None:
    negative = text.startswith("负")
    text = text.removeprefix("负")
    if text == "半" or text == "一半":
        value: Fraction | None = Fraction(1, 2)
    elif "分之" in text:
        below, _, above = text.partition("分之")
        bottom = 100 if below == "百" else _chinese_whole(below)
        top = _chinese_whole(above)
        value = Fraction(top, bottom) if top is not None and bottom else None
    else:
        whole = _chinese_whole(text)
        value = None if whole is None else Fraction(whole)
    return -value if negative and value is not None else value


def _chinese_whole(text: str) -> int | None:
    if not _CHINESE.fullmatch(text):
        return None
    total = group = digit = 0
    for character in text:
        if character in _CHINESE_DIGITS:
            digit = _CHINESE_DIGITS[character]
        elif character in _CHINESE_TENS:
            group, digit = group + (digit or 1) * _CHINESE_TENS[character], 0
        else:
            total = (total + group + digit) * (10**4 if character == "万" else 10**8)
            group = digit = 0
    return total + group + digit
