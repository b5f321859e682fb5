r"""What kind of thing an answer is: a scalar, a list, a set, a tuple, an interval, a relation, a matrix, words.

Conventions. Bare lists and sets are unordered, ``3,5`` and ``3 or 5`` alike; parentheses and square brackets keep
order. A comma between digits is a thousands separator where it can be one, and a decimal comma where a number is
wanted. ``p=5,q=2;p=7,q=2`` are two named tuples. ``\pm`` stands for both values.
"""

import re
from functools import partial

from grpo_core.rewards.expression import parse
from grpo_core.rewards.kinds import (
    AllReals,
    Item,
    Listing,
    Matrix,
    Ratio,
    Reading,
    Relation,
    Scalar,
    SetOperation,
)
from grpo_core.rewards.number_words import words_value
from grpo_core.rewards.scalars import GERMAN, TWO_WHOLES, read_clock, read_date, read_scalar
from grpo_core.rewards.splitting import spans, split, top_matches
from grpo_core.rewards.tokens import Node, TooLargeError, UnreadableError
from grpo_core.rewards.units import without_unit

MAX_ITEMS = 200
_MAX_NESTED = 8


_CONJUNCTION = re.compile(
    r"\s*(?:,\s*)?(?:(?<![A-Za-z\\])(?:and|or|und|oder|et|ou)(?![A-Za-z])|[和或与及]|\\wedge|\\vee)\s*(?:,\s*)?|\s*;\s*"
)
_OR = re.compile(r"(?<![A-Za-z\\])(?:or|oder|ou)(?![A-Za-z])|或|\\vee|;")
_BOUND = re.compile(r"[<>]|\\(?:le|ge|ne)(?![A-Za-z])")
_COMMA = re.compile(r"\s*,\s*")
_THOUSANDS = re.compile(r"(?<![0-9,.])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")
_RELATION = re.compile(
    r"\\(?P<named>le|ge|ne|approx|in|equiv|sim)(?![A-Za-z])|(?P<two><=|>=|!=|==|=<|=>|:=)|(?P<one>[=<>])"
)
_TWO = {"<=": "le", ">=": "ge", "!=": "ne", "==": "=", "=<": "le", "=>": "arrow", ":=": "="}
_ARROW = re.compile(r"\\(?:Rightarrow|Leftrightarrow|iff|to|rightarrow|longrightarrow|therefore)(?![A-Za-z])")
_SET_OPERATOR = re.compile(r"\\(?P<operator>cup|cap|setminus)(?![A-Za-z])|(?P<word>(?<![A-Za-z])U(?![A-Za-z]))")
_WITHOUT = re.compile(r"(?<=[})\]])\s*-\s*(?=\\\{)")
_MATRIX = re.compile(
    r"(?P<open>\[|\(|\\\{)?\s*\\begin\{(?P<name>[pbBv]?matrix|array|smallmatrix|cases)\}(?:\{[lcr|@{}\s]*\})?"
    r"(?P<body>.*?)\\end\{(?P=name)\}\s*(?P<close>\]|\)|\\\})?",
    re.DOTALL,
)
_NAME = re.compile(
    r"(?:\\(?:angle|triangle|operatorname|overline|vec|hat|bar|frac|Delta)?\s*|\|)?[A-Za-z\\][A-Za-z\\{}_'|:/\s^,()0-9]*"
    r"|\([A-Za-z\\][A-Za-z\\{}_',;\s0-9]*\)|\\frac\{[A-Za-z_{}0-9]+\}\{[A-Za-z_{}0-9]+\}|\|[^|]*\|"
)
_INVERSE = re.compile(r"(?<=[A-Za-z])(?<!\\sin|\\cos|\\tan)\s*\^\s*\{?\s*-1\s*\}?\s*(?=\()")
_POINT = re.compile(r"[A-Z]'?(?:_\{?[A-Za-z0-9]\}?)?\s*(?=\(.*,.*\)\Z)", re.DOTALL)
_SYSTEM = re.compile(
    r"\\begin\{(?P<name>cases|aligned|gathered|split|align\*?)\}(?P<body>.*)\\end\{(?P=name)\}", re.DOTALL
)
_NOT_A_NAME = re.compile(
    r"\\(?:sin|cos|tan|cot|sec|csc|log|ln|lim|sum|int|prod|sqrt|frac\{[0-9])|(?<!_)[0-9](?![^_{(]*[}\)])|(?<![_0-9{(A-Za-z])[0-9]|\^"
)
_EMPTY = re.compile(
    r"\\emptyset|\\\{\s*\\?\}|\{\s*\}|\\O|empty set|the empty set|no (?:real )?solutions?|none", re.IGNORECASE
)
_REALS = re.compile(
    r"\\mathbb\s*\{?\s*R\s*\}?|\\Re|all real numbers|all reals|the real numbers|\(-\\infty,\s*\+?\\infty\)",
    re.IGNORECASE,
)
_LETTERS_ONLY = re.compile(r"[^\W\d_]{3,}(?:[\s-]+[^\W\d_]+){0,12}|[^\x00-\x7f]{1,12}")
_ANGLED = re.compile(r"<[^<>=]*,[^<>=]*>")
_FRENCH = re.compile(
    r"(?:(?<![0-9A-Za-z)\]}])(?P<low>\])|(?P<closed>\[))(?P<ends>[^\[\]()]*[,;][^\[\]()]*)(?P<high>[\[\]])"
)
_BUILDER = re.compile(r"\s*\\?[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{?[RC]\}?\s*)?(?:\||:)\s*(?P<condition>.+)", re.DOTALL)
_TO = re.compile(r"\A(?P<first>[0-9]+)\s+to\s+(?P<second>[0-9]+)\Z")
_MIXED_WORDS = re.compile(
    r"(?P<whole>-?[0-9]+)\s+and\s+(?P<part>[0-9]+/[0-9]+|\\frac\s*\{[0-9]+\}\{[0-9]+\}|\\frac[0-9]{2})"
)
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")


def read(text: str, nested: int = 0) -> Reading:
    """The kind and parts of ``text``, which is ``normalise.canonical``.

    Raises:
        BrokenError: brackets do not match.
        UnreadableError: it is none of these kinds.
        TooLargeError: it is beyond any real answer.
    """
    if nested > _MAX_NESTED:
        raise TooLargeError("nested too deeply")
    text = text.strip().replace("\\langle", "(").replace("\\rangle", ")")
    if _ANGLED.fullmatch(text):
        text = f"({text[1:-1]})"
    if _LETTERS_ONLY.fullmatch(text):
        number = words_value(text)
        if number is not None:
            return Scalar(text, Node("number", value=number))
    date = read_date(text)
    if date is not None:
        return date
    system = _SYSTEM.fullmatch(text)
    if system is not None:
        return _system(system["body"], nested)
    matrix = _MATRIX.fullmatch(text)
    if matrix is not None and "\\begin" not in matrix["body"]:
        return _matrix(matrix, nested)
    if "\\begin" in text:
        raise UnreadableError("an environment")
    if _EMPTY.fullmatch(text):
        return Listing("{}", ())
    if _REALS.fullmatch(text):
        return AllReals()
    if text.startswith("{") and text.endswith("}") and "," in text and spans(text):
        text = f"\\{text[:-1]}\\}}"  # a set that lost its backslashes
    text = text.replace("$", " ") if text.count("$") > 1 else text
    text = _WITHOUT.sub(r"\\setminus ", text)
    text = _FRENCH.sub(_half_open, text)
    text = split(text, _ARROW)[-1]
    text = _TO.sub(r"\g<first>:\g<second>", text)
    groups = [group for group in split(text, _CONJUNCTION) if group]
    if len(groups) < 2 and any(sign in text for sign in "<>\\"):
        groups = [group for group in split(text, _COMMA) if group] if _bounds(split(text, _COMMA)) else groups
    if _bounds(groups) and not _OR.search(text):
        bounds: Reading = _commas(groups[0], nested)
        for group in groups[1:]:
            bounds = SetOperation("and", bounds, _commas(group, nested))
        return bounds
    if len(groups) > 1:
        joined = _grouped([_commas(group, nested) for group in groups])
        mixed = _MIXED_WORDS.fullmatch(text)
        if mixed is not None and isinstance(joined, Listing):
            number_text = read_scalar(f"{mixed['whole']} {mixed['part']}")
            return Listing("", joined.items, number_text if isinstance(number_text, Scalar) else None)
        return joined
    return _commas(groups[0] if groups else text, nested)


def _bounds(texts: list[str]) -> bool:
    """Whether these are several inequalities about one letter."""
    if not 2 <= len(texts) <= 4 or not all(_BOUND.search(text) for text in texts):
        return False
    return len({letter for text in texts for letter in re.findall(r"(?<![A-Za-z\\])[A-Za-z]+", text)}) == 1


def assigned(relation: Relation) -> tuple[str, str] | None:
    """``(name, value text)`` of ``x = 5`` and of chains ``x = 2 + 3 = 5``; None where the left side is no name."""
    if set(relation.operators) - {"=", "approx", "in", "equiv"}:
        return None
    name = _INVERSE.sub("inv", relation.sides[0].strip())
    if (
        len(name) > 80
        or not _NAME.fullmatch(name)
        or (_NOT_A_NAME.search(name) and not re.fullmatch(r"[A-Za-z]\([^()]*\)", name))
    ):
        return None
    return re.sub(r"[\s{}]", "", name), relation.sides[-1]


def _signed(signs: dict[str, str], sign: re.Match[str]) -> str:
    return signs[sign[1]]


def _half_open(interval: re.Match[str]) -> str:
    """``]1, 2[``, the French way to write open ends, with parentheses."""
    opener = "(" if interval["low"] else "["
    return f"{opener}{interval['ends']}{')' if interval['high'] == '[' else ']'}"


def _grouped(groups: list[Reading]) -> Reading:
    """Joins what conjunctions held apart: lists flow together, but named groups of equal names are tuples."""
    named = [
        tuple(item.name for item in group.items) if isinstance(group, Listing) and not group.brackets else ()
        for group in groups
    ]
    if (
        len(named[0]) > 1
        and named[0][0]
        and all(names == named[0] for names in named)
        and len(set(named[0])) == len(named[0])
    ):
        return Listing(
            "", tuple(Item("", Listing("()", group.items)) for group in groups if isinstance(group, Listing))
        )
    items: list[Item] = []
    for group in groups:
        items.extend(group.items if isinstance(group, Listing) and not group.brackets else [_item(group, 1)])
    return _listing("", items)


def _commas(text: str, nested: int) -> Reading:
    flat = (
        _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
        if "," in text and not text.startswith(("(", "[", "{", "\\{"))
        else text
    )
    parts = split(flat, _COMMA)
    if len(parts) < 2:
        return _single(flat, nested)
    if len(parts) > MAX_ITEMS:
        raise TooLargeError("too long a list")
    if GERMAN.fullmatch(text):
        return read_scalar(text.replace(".", "").replace(",", "."))
    number = None
    stripped, unit = without_unit(text)
    if TWO_WHOLES.fullmatch(stripped) and len(parts) == 2:
        decimal = _single(text.replace(",", ".", 1), nested)
        number = decimal if isinstance(decimal, Scalar) else None
        if unit is not None and number is not None:
            return number
    items = [item for part in parts if part for item in _items(_single(part, nested + 1), nested)]
    return _listing("", items, number)


def _listing(brackets: str, items: list[Item], number: Scalar | None = None) -> Listing:
    """A name holds for the values that follow it without one: ``n = 1, 2, 3``."""
    if items and items[0].name and not items[0].name.startswith("(") and not any(item.name for item in items[1:]):
        items = [Item(items[0].name, item.value) for item in items]
    return Listing(brackets, tuple(items), number)


def _items(reading: Reading, nested: int) -> tuple[Item, ...]:
    if isinstance(reading, Listing) and not reading.brackets and reading.number is None:
        return reading.items
    return (_item(reading, nested),)


def _item(reading: Reading, nested: int) -> Item:
    if isinstance(reading, Relation):
        named = assigned(reading)
        if named is not None:
            return Item(named[0], read(named[1], nested + 1))
    return Item("", reading)


def _single(text: str, nested: int) -> Reading:
    text = text.strip()
    clock = read_clock(text)
    if clock is not None:
        return clock
    relation = _relation(text, nested)
    if relation is not None:
        return relation
    places = split(text, _SET_OPERATOR)
    if len(places) > 1 and all(places):
        operators = [match["operator"] or "cup" for match in top_matches(text, _SET_OPERATOR)]
        result = read(places[0], nested + 1)
        for operator, part in zip(operators, places[1:], strict=True):
            result = SetOperation(operator, result, read(part, nested + 1))
        return result
    point = _POINT.match(text)
    bracketed = _bracketed(text if point is None else text[point.end() :], nested)
    if bracketed is not None:
        return bracketed
    if _PLUS_MINUS.search(text):
        upper, lower = {"pm": "+", "mp": "-"}, {"pm": "-", "mp": "+"}
        both = [_PLUS_MINUS.sub(partial(_signed, signs), text) for signs in (upper, lower)]
        return Listing("", tuple(Item("", read_scalar(re.sub(r"\A\s*\+", "", value))) for value in both))
    ratio = split(text, re.compile(":"))
    if len(ratio) > 1 and all(ratio):
        parts = [read_scalar(part) for part in ratio]
        if all(isinstance(part, Scalar) and part.tree is not None for part in parts):
            return Ratio(tuple(part for part in parts if isinstance(part, Scalar)))
    return read_scalar(text)


def _relation(text: str, nested: int) -> Reading | None:
    matches = top_matches(text, _RELATION)
    if not matches:
        return None
    sides: list[str] = []
    operators: list[str] = []
    start = 0
    for match in matches:
        sides.append(text[start : match.start()].strip())
        operators.append(match["named"] or _TWO.get(match["two"] or "", "") or match["one"])
        start = match.end()
    sides.append(text[start:].strip())
    if not sides[0] and operators[0] in ("<", ">", "le", "ge", "ne"):
        sides[0] = "x"  # "> 42" says what some unknown is
    elif not sides[0]:
        sides, operators = sides[1:], operators[1:]
    if not all(sides) or not sides:
        raise UnreadableError("a side is missing")
    if not operators:
        return read(sides[0], nested + 1)
    if operators == ["in"]:
        return read(sides[1], nested + 1)
    return Relation(tuple(sides), tuple(operators))


def _bracketed(text: str, nested: int) -> Reading | None:
    opener = "\\{" if text.startswith("\\{") else text[:1]
    closer = next((end for end in ("\\}", ")", "]") if text.endswith(end)), "")
    if opener not in ("\\{", "(", "[") or not closer or len(text) < len(opener) + len(closer):
        return None
    if not spans(text):
        return None
    inner = text[len(opener) : -len(closer)].strip()
    brackets = {"\\{": "{"}.get(opener, opener) + {"\\}": "}"}.get(closer, closer)
    builder = _BUILDER.fullmatch(inner) if brackets == "{}" else None
    if builder is not None:
        return read(builder["condition"], nested + 1)
    separated = split(inner, re.compile(r"\s*;\s*"))
    parts = separated if len(separated) > 1 else split(inner, _COMMA)
    if len(parts) > MAX_ITEMS:
        raise TooLargeError("too long a list")
    if len(parts) > 1 and all(parts):
        items = [item for part in parts for item in _items(read(part, nested + 1), nested)]
        return _listing(brackets, items)
    if brackets == "{}":
        return Listing("{}", _items(read(inner, nested + 1), nested))
    if brackets in ("[]", "()") and inner and (brackets == "[]" or _RELATION.search(inner) or not _readable(text)):
        return read(inner, nested + 1)
    return None


def _readable(text: str) -> bool:
    try:
        parse(text)
    except UnreadableError:
        return False
    return True


def _system(body: str, nested: int) -> Reading:
    """Equations one below the other; one that starts with its sign goes on where the last one ended."""
    rows = [re.sub(r"\s*&\s*", " ", row).strip(" ,;.") for row in re.split(r"\\\\", body)]
    if "\\begin" in body or not all(_RELATION.search(row) and "\\text" not in row for row in rows if row):
        raise UnreadableError("a system of other things")
    joined = ""
    for row in filter(None, rows):
        joined += row if not joined else f" {row}" if _RELATION.match(row) else f", {row}"
    return read(joined, nested + 1)


def _matrix(match: re.Match[str], nested: int) -> Reading:
    if match["name"] in ("vmatrix", "cases"):
        raise UnreadableError("a determinant")
    rows = [row.strip() for row in re.split(r"\\\\|\\cr(?![a-z])", match["body"].replace("\\hline", ""))]
    return Matrix(tuple(tuple(read(cell, nested + 1) for cell in row.split("&")) for row in rows if row))
