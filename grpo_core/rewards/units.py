r"""What stands around a number: units, currency, words for what is counted. Units are compared by what they measure.

Convention, as most labelled data has it: a unit on one side only is no difference (``12 cm`` is ``12``), since a gold
often leaves it to the question. Where both sides name a known unit the quantities are compared (``3 m`` is ``300 cm``
and is neither ``3 km`` nor ``3 kg``). Nouns that are no measure (``12 apples``) are dropped.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from grpo_core.rewards.number_words import words_value


@dataclass(frozen=True, slots=True)
class Unit:
    """What is measured, and how many of that dimension's base unit one of it is. A noun has the dimension ``""``."""

    dimension: str
    factor: Fraction = Fraction(1)


NOUN = Unit("")

_LENGTHS = {
    "mm millimeter millimetre": "1/1000", "cm centimeter centimetre": "1/100", "dm decimeter decimetre": "1/10",
    "m meter metre": "1", "km kilometer kilometre": "1000", "nm nanometer nanometre": "1/1000000000",
    "µm um micrometer micrometre micron": "1/1000000", "in inch inches": "254/10000", "ft foot feet": "3048/10000",
    "yd yard": "9144/10000", "mi mile": "1609344/1000",
}  # fmt: skip
_OTHERS = {
    "mass": {
        "mg milligram": "1/1000", "g gm gram gramme": "1", "kg kilo kilogram": "1000", "ton tonne": "1000000",
        "lb lbs pound": "45359237/100000", "oz ounce": "45359237/1600000",
    },
    "time": {
        "ms millisecond": "1/1000", "s sec second": "1", "min minute": "60", "h hr hour": "3600", "day": "86400",
        "week wk": "604800", "month": "2629800", "year yr": "31557600", "decade": "315576000",
    },
    "volume": {
        "ml mL milliliter millilitre cc": "1/1000000", "cl": "1/100000", "l L liter litre": "1/1000",
        "gal gallon": "3785411784/1000000000000", "quart qt": "946352946/1000000000000",
        "pint": "473176473/1000000000000",
        "cup": "2365882365/10000000000000",
    },
    "dollar": {"dollar USD usd buck $": "1", "cent ¢": "1/100", "dime": "1/10", "nickel": "1/20", "quarter": "1/4"},
    "euro": {"euro EUR eur €": "1"},
    "sterling": {"GBP £ quid": "1", "pence": "1/100"},
    "yuan": {"yuan rmb RMB CNY 元 块": "1", "jiao 角": "1/10", "fen 分": "1/100"},
    "yen": {"yen JPY ¥ 円": "1"},
    "rupee": {"rupee Rs rs INR ₹": "1"},
    "ruble": {"ruble rouble RUB ₽": "1"},
    "won": {"won KRW ₩": "1"},
    "angle": {"degree deg °": "1"},
    "radian": {"radian rad": "1"},
    "temperature C": {"°C °celsius °Celsius celsius Celsius": "1"},
    "temperature F": {"°F °fahrenheit °Fahrenheit fahrenheit Fahrenheit": "1"},
    "temperature K": {"K kelvin": "1"},
    "speed": {"mph": "44704/100000", "kph kmph kmh": "10/36", "knot": "1852/3600"},
    "force": {"N newton": "1", "kN": "1000"},
    "energy": {"J joule": "1", "kJ": "1000", "eV": "1602176634/10000000000000000000000000000",
               "cal calorie": "4184/1000"},
    "power": {"W watt": "1", "kW kilowatt": "1000"},
    "frequency": {"Hz hertz": "1", "kHz": "1000", "MHz": "1000000"},
    "pressure": {"Pa pascal": "1", "kPa": "1000", "atm": "101325"},
    "voltage": {"V volt": "1"}, "current": {"A ampere amp": "1"}, "resistance": {"ohm Ω": "1"},
    "data": {"byte": "8", "bit": "1", "KB": "8192", "MB": "8388608", "GB": "8589934592"},
    "amount": {"mol mole": "1"}, "area": {"acre": "40468564224/10000000", "hectare ha": "10000"},
}  # fmt: skip
_CHINESE = {
    "米": "m", "厘米": "cm", "毫米": "mm", "分米": "dm", "千米": "km", "公里": "km", "克": "g", "千克": "kg",
    "公斤": "kg", "吨": "ton", "秒": "s", "分钟": "min", "小时": "h", "天": "day", "周": "week",
    "月": "month", "年": "year",
    "升": "L", "毫升": "ml", "度": "°", "美元": "$", "美分": "cent", "欧元": "€", "日元": "¥", "人民币": "yuan",
    "平方米": "m^2",
    "平方厘米": "cm^2", "平方千米": "km^2", "立方米": "m^3", "立方厘米": "cm^3", "平方分米": "dm^2", "立方分米": "dm^3",
}  # fmt: skip


def _table() -> dict[str, Unit]:
    table: dict[str, Unit] = {}
    for dimension, names in {"length": _LENGTHS, **_OTHERS}.items():
        for spellings, factor in names.items():
            for name in spellings.split():
                table[name] = Unit(dimension, Fraction(factor))
                if len(name) > 2 and name.isalpha() and name.isascii():
                    table.setdefault(name + "s", table[name])
                    table.setdefault(name.capitalize(), table[name])
                    table.setdefault(name.capitalize() + "s", table[name])
    return table


_KNOWN = _table()
_NO_UNIT_WORDS = (
    "and or to but not nor either neither if when where which whichever unless between than vs versus maybe perhaps "
    "possibly plus minus times over mod sin cos tan log ln lim max min gcd lcm pi sqrt frac for all is are was no "
    "other incorrect wrong false except then else also"
)
_NEVER = frozenset(_NO_UNIT_WORDS.split())
_SMALL = frozenset({"of", "in", "a", "an", "the", "per", "at", "by", "on", "th", "st", "nd", "rd"})
_CURRENCY_BEFORE = re.compile(
    r"\A(?P<sign>[-+]?)\s*(?P<unit>\\?\$|[€£¥₹₽₩¢]|(?:US|A|C|NZ|HK|S)\\?\$|(?:USD|EUR|GBP|CNY|RMB|JPY|INR|CAD|AUD|Rs)(?![A-Za-z])\.?)"
    r"\s*(?=[-+.0-9\\({])"
)
_WORD = (
    r"(?:[A-Za-z\u00c0-\u024f]+\.?|[°€£¥₹₽₩¢$Ω%µ]C?F?"
    r"|[\u0400-\u04ff\u0600-\u06ff\u0900-\u097f\u3040-\u9fff\uac00-\ud7af]+)"
)
_ASIDE = re.compile(r"(?<=[0-9}a-z.])\s*\(\s*([A-Za-z][A-Za-z\s/^0-9-]{2,40})\)\Z")
_POWER = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|-?[0-9]))?"
_AFTER = re.compile(
    rf"(?:(?<=[0-9)}}\]!%.])|(?<=\\pi)"
    rf"|(?<=\\pi ))(?P<unit>[-\s]*(?:\\cdot\s*)?{_WORD}{_POWER}(?:(?:\s*[-/·*,]?\s*"
    rf"|\s*\\cdot\s*){_WORD}{_POWER}){{0,7}})\s*\Z"
)
_DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\circ(?![a-z])|\\degree(?![a-z]))\s*(?=\Z|[CF]\Z|[^A-Za-z])")
_LONGEST = 120
_THERMAL = re.compile(r"\A(?:degrees?|deg)\s+(?=(?:celsius|fahrenheit|C|F)\Z)", re.IGNORECASE)
_SPLIT = re.compile(rf"({_WORD})({_POWER})")
_SQUARE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}


def without_unit(text: str) -> tuple[str, Unit | None]:
    """The text before a trailing unit or after leading currency, and that unit; None where there is none.

    The unit may be LaTeX text already unwrapped (``15 cm^2``), a symbol (``$``), a noun, or Chinese.
    """
    before = _CURRENCY_BEFORE.match(text)
    if before is not None:
        rest = before["sign"] + text[before.end() :]
        name = before["unit"].replace("\\", "").rstrip(".")
        inner, after = without_unit(rest)
        if after is not None and after != NOUN and after != _KNOWN.get(name):
            return text, None  # two different ones
        return inner, _KNOWN.get(name, Unit(name))
    aside = _ASIDE.search(text)
    if aside is not None and (words_value(aside[1]) is not None or read_unit(aside[1]) is not None):
        inner, unit = without_unit(text[: aside.start()])
        return inner, unit or read_unit(aside[1]) or NOUN
    given, text = text, _DEGREES.sub("°", text)
    if "°" in text and not text.isascii():
        text = re.sub("°\\s+(?=[CF]\\Z)", "°", text)
    if len(text) > _LONGEST and not _AFTER.search(text[-_LONGEST:]):
        return given, None
    after_match = _AFTER.search(text)
    if after_match is None or not text[: after_match.start()].strip():
        return given, None
    unit = read_unit(after_match["unit"].strip(" -,"))
    if unit is None:
        return given, None
    return text[: after_match.start()].rstrip(" ,"), unit


def read_unit(text: str) -> Unit | None:
    """The unit that ``text`` names: ``km/h``, ``square feet``, ``cm^2``, ``apples``; None where it is none."""
    text = _THERMAL.sub("°", text.replace("\\cdot", " ").strip())
    if text in _KNOWN:
        return _KNOWN[text]
    for name, other in sorted(_CHINESE.items(), key=lambda pair: -len(pair[0])):
        if text == name:
            return read_unit(other)
    words = [(word.rstrip("."), power) for word, power in _SPLIT.findall(text)]
    if any(word.lower() in _NEVER for word, _ in words):
        return None
    known = _measure(text, words)
    if known is not None:
        return known
    if all(
        not word.isascii() or (len(word) > 2 and word.isalpha()) or word in _KNOWN or word in _SMALL or word in _SQUARE
        for word, _ in words
    ) and not all(word in _SMALL for word, _ in words):
        return NOUN
    return None


def _measure(text: str, words: list[tuple[str, str]]) -> Unit | None:
    """A product and quotient of known units, or None. ``square feet`` and ``feet squared`` are powers."""
    names: list[str] = []
    factor = Fraction(1)
    divided = False
    pending = 1
    position = 0
    for place, (word, power) in enumerate(words):
        position = text.find(word, position)
        if "/" in text[:position]:
            divided = True
        position += len(word)
        if word == "per":
            divided = True
            continue
        if word in _SQUARE:
            if place and word.endswith("ed") and names:
                unit = _KNOWN[words[place - 1][0]]
                names += [names[-1]] * (_SQUARE[word] - 1)
                factor *= unit.factor ** (_SQUARE[word] - 1)
            else:
                pending = _SQUARE[word]
            continue
        known = _KNOWN.get(word)
        if known is None:
            return None
        times = int(re.sub(r"[\s^{}]", "", power) or 1) * pending
        pending = 1
        if divided:
            times = -times
        names += [known.dimension if times > 0 else "per " + known.dimension] * abs(times)
        factor *= known.factor**times
    if not names or pending != 1:
        return None
    dimension = " ".join(sorted(names))
    dimension = {"length length length": "volume", "length length": "area", "length per time": "speed"}.get(
        dimension, dimension
    )
    return Unit(dimension, factor)


def conversion(gold: Unit | None, answer: Unit | None) -> Fraction | None:
    """What an answer's number is multiplied by to be in the gold's unit; None where they measure different things."""
    if gold is None or answer is None or NOUN in (gold, answer):
        return Fraction(1)
    return answer.factor / gold.factor if gold.dimension == answer.dimension else None
