r"""A prompt as tokens that its spelling leaves alone: no case, punctuation, spacing, or look of its LaTeX.

``$x$`` and ``\(x\)``, ``\dfrac12`` and ``\frac{1}{2}``, ``1,000`` and ``1000``, ``Problem 12.`` before a problem and
nothing before it give equal tokens. Numbers, operators and names of variables are tokens of their own.
"""

import re
import unicodedata
from dataclasses import dataclass

_ONES = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBER_WORDS = {word: str(value) for value, word in enumerate(_ONES.split(), start=2)} | {
    word: str(10 * value) for value, word in enumerate(_TENS.split(), start=2)
}
# What turns one problem into another although only one word differs.
_DECISIVE_WORDS = """
no not never without except once twice thrice double doubled triple tripled half third thirds quarter quarters dozen
hundred hundreds thousand thousands million billion first second fourth fifth last next more less fewer greater
smaller larger bigger longer shorter taller higher lower older younger faster slower least most minimum maximum min
max minimize maximize largest smallest greatest lowest highest longest shortest best worst sum total product
difference quotient remainder ratio even odd positive negative area perimeter volume circumference radius diameter
surface mean average median mode range variance increase increased decrease decreased increasing decreasing
ascending descending sin cos tan cot sec csc log ln exp gcd gcf lcm before after above below inside outside left
right up down north south east west row rows column columns real imaginary rational irrational prime composite
domain horizontal vertical true false
"""
_DECISIVE = frozenset(_DECISIVE_WORDS.split())
_LATEX = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![a-z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (
            r"\\(?:(?:left|right|[bB]igg?[lr]?|displaystyle|limits|q?quad|boxed|begin|end|text|math(?:rm|bf|it)"
            r"|text(?:bf|it)|mbox|emph|operatorname)(?![A-Za-z])|[()\[\],;:!$%{}]|(?=\s|\Z))",
            " ",
        ),
        (r"\\(?:cdot|times)(?![A-Za-z])", " * "),
        (r"\\div(?![A-Za-z])", " / "),
        (r"\\l(?:eq?|eqslant)(?![A-Za-z])", " <= "),
        (r"\\g(?:eq?|eqslant)(?![A-Za-z])", " >= "),
        (r"\\neq?(?![A-Za-z])", " != "),
        (r"\\lt(?![A-Za-z])", " < "),
        (r"\\gt(?![A-Za-z])", " > "),
    )
]
_UNICODE = str.maketrans(
    {"×": " * ", "·": " * ", "∙": " * ", "÷": " / ", "≤": " <= ", "≥": " >= ", "≠": " != ", "−": "-", "‐": "-"}
    | {"‑": "-", "²": "^2", "³": "^3", "’": "", "‘": "", "—": " "}
)
_EN_DASH = re.compile(r"(?<!\d)–|–(?!\d)")
_ASCII = str.maketrans({"$": " ", "`": " ", "{": " ", "}": " ", "~": " ", "'": ""})
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
# A dash or stroke between words is punctuation; between numbers or names of variables it is an operator.
_IN_WORDS = re.compile(r"(?<=[^\W\d_]{2})\s?[-/]+\s?(?=[^\W\d_]{2})|(?<=\d)\s?-(?=[^\W\d_]{2})")
_SPACE_INSIDE = re.compile(r"\s+(?=[)\]])")
_LEAD = re.compile(
    r"\A\s*(?:(?:problem|question|exercise|example|task|q)\s*(?:no\.?|number|\#)?\s*"
    r"(?:\d+(?:\.\d+)*\s*[.:)\]-]+|:)|\(?\d{1,3}[.)](?=\s))\s*",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"(?P<number>\d+(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<command>\\[A-Za-z]+)"
    r"|(?P<cjk>[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3])"
    r"|(?P<word>[^\W\d_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]+)"
    r"|(?P<sign><=|>=|!=|==|[-+*/^=<>%|&\\]|(?<!_)_(?!_)|(?<=[\d)])!|(?<=\d):(?=\d)"
    r"|[(\[](?=\s*(?:[-+\d\\(\[]|[^\W\d_](?![^\W\d_])))|(?<=[\d)\]^_+*=-])[)\]]|(?<=\b[^\W\d_])[)\]])"
)
_IN_FORMULAS = frozenset({"number", "sign", "variable"})


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's tokens in order.

    Attributes:
        words: all of them.
        numbers: the numbers, signs and names of variables among them.
        signature: ``numbers`` with commands and the words that make another problem of it.
        capitals: the words in capital letters of a text that is not written in them: they stand for themselves.
    """

    words: tuple[str, ...]
    numbers: tuple[str, ...]
    signature: tuple[str, ...]
    capitals: frozenset[str]


def tokens_of(text: str) -> Tokens:
    """The tokens of a prompt. Linear in its length."""
    words: list[str] = []
    kinds: list[str] = []
    capitals: set[str] = set()
    for match in _TOKEN.finditer(_respelled(text)):
        kind = match.lastgroup or ""
        token = match.group()
        if kind == "number":
            token = _plain_number(token)
        elif kind == "word":
            folded = token.casefold()
            if len(token) > 1 and token.isupper():
                capitals.add(folded)
            token = folded
            if token in _NUMBER_WORDS:
                token, kind = _NUMBER_WORDS[token], "number"
        words.append(token)
        kinds.append(kind)
    for place, word in enumerate(words):
        if kinds[place] == "word" and _is_variable(word, kinds, place):
            kinds[place] = "variable"
    pairs = list(zip(words, kinds, strict=True))
    numbers = tuple(word for word, kind in pairs if kind in _IN_FORMULAS)
    signature = tuple(word for word, kind in pairs if kind in _IN_FORMULAS or kind == "command" or word in _DECISIVE)
    return Tokens(tuple(words), numbers, signature, frozenset() if text.isupper() else frozenset(capitals))


def _respelled(text: str) -> str:
    text = _LEAD.sub("", text, count=1)
    if not text.isascii():
        text = _EN_DASH.sub(" ", unicodedata.normalize("NFC", text).translate(_UNICODE)).replace("–", "-")
    if "\\" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
    text = text.translate(_ASCII)
    if "**" in text:
        text = _BOLD.sub(r"\1", text)
    if "-" in text or "/" in text:
        text = _IN_WORDS.sub(" ", text)
    return _SPACE_INSIDE.sub("", text)


def _plain_number(token: str) -> str:
    token = token.replace(",", "")
    return token.rstrip("0").rstrip(".") or "0" if "." in token else token


def _is_variable(word: str, kinds: list[str], place: int) -> bool:
    """A single letter; "a" and "I" are words of the language unless they stand in a formula."""
    return len(word) == 1 and (
        word not in "ai" or "sign" in kinds[max(0, place - 1) : place] + kinds[place + 1 : place + 2]
    )
