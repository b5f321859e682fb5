r"""The tokens of an expression, the tree that is made of them, and what can be wrong with a text."""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_TOKENS = 45_000
MAX_DIGITS = 2_000
"""Longest run of digits read as a number."""


class UnreadableError(Exception):
    """This text is nothing that this reader knows."""


class TooLargeError(Exception):
    """This text is nested, long or large beyond what any real answer is: no further check would help."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. ``kind`` says which; ``name`` holds the symbol or function, ``value`` the number.

    For a decimal literal ``places`` is its number of digits after the point, ``digits`` of significant ones.
    """

    kind: str
    parts: tuple["Node", ...] = ()
    name: str = ""
    value: Fraction = Fraction(0)
    places: int | None = None
    digits: int = 0


_FUNCTION_NAMES = (
    "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan asin acos atan log ln lg exp gcd lcm max min"
)
_SYMBOL_NAMES = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega hbar ell odot"
)
FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
WORDS = frozenset({*FUNCTIONS, "sqrt", "pi", "infinity", "infty", "inf", "theta", "alpha", "beta", "frac", "mod"})
SYMBOL_COMMANDS = frozenset("\\" + name for name in _SYMBOL_NAMES.split())
_TOKEN = re.compile(
    r"(?P<repeat>[0-9]*\.[0-9]*\\dot\s*\{?[0-9]\}?[0-9]*\\dot\s*\{?[0-9]\}?|[0-9]*\.[0-9]*(?:\\(?:overline|bar|dot)\s*(?:\{[0-9]+\}|[0-9])|\([0-9]{1,12}\)))"
    r"|(?P<number>[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?\.?(?![0-9])|\.[0-9]+)"
    r"(?P<exponent>[eE][-+]?[0-9]{1,6}(?![0-9A-Za-z.]))?"
    r"|(?P<dots>\\[lc]?dots[a-z]?)"
    r"|(?P<command>\\[A-Za-z]+|\\[{}%$|])"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<operator>\*\*|[-+*/^_!(){}\[\]|,:'%=])"
    r"|(?P<space>\s+)"
    r"|(?P<other>.)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is number, repeat, command, word or operator; ``spaced``: there was space before it."""

    kind: str
    text: str
    spaced: bool
    exponent: str = ""


def tokenised(text: str) -> list[Token]:
    """The tokens of ``text``, at least one.

    Raises:
        UnreadableError: for a character or word that no expression has, and for an empty text.
        TooLargeError: for more than ``MAX_TOKENS`` tokens or a number of more than ``MAX_DIGITS`` digits.
    """
    tokens: list[Token] = []
    spaced = False
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "other"
        if kind == "space":
            spaced = True
            continue
        if kind in ("other", "dots"):
            raise UnreadableError(f"unknown: {match[0]}")
        if kind in ("number", "exponent"):
            token = Token("number", match["number"], spaced, match["exponent"] or "")
        else:
            token = Token(kind, match[0], spaced)
        if len(token.text) > MAX_DIGITS or len(tokens) > MAX_TOKENS:
            raise TooLargeError("too long a number")
        if kind == "word" and token.text not in WORDS:
            tokens.extend(_letters(token))
        else:
            tokens.append(token)
        spaced = False
    if not tokens:
        raise UnreadableError("nothing there")
    return tokens


def _letters(word: Token) -> list[Token]:
    """A run of letters is a known function with its argument (``sinx``), else a product of single letters."""
    for name in sorted(WORDS, key=len, reverse=True):
        if word.text.startswith(name) and len(name) > 1 and len(word.text) - len(name) == 1:
            return [Token("word", name, word.spaced), Token("word", word.text[len(name) :], False)]
        if word.text.endswith(name) and name in ("pi", "sqrt") and len(word.text) - len(name) == 1:
            return [Token("word", word.text[0], word.spaced), Token("word", name, False)]
    if len(word.text) > 3:
        raise UnreadableError(f"a word: {word.text[:20]}")
    return [Token("word", letter, word.spaced and not place) for place, letter in enumerate(word.text)]


def repeating(text: str) -> Fraction:
    r"""``0.1\overline{6}``, ``0.1(6)``, ``0.\dot{3}`` as the fraction they are."""
    before, _, after = text.partition(".")
    fixed = re.match("[0-9]*", after)
    assert fixed is not None
    period = re.sub("[^0-9]", "", after[fixed.end() :])
    scale = 10 ** len(fixed[0])
    repeated = Fraction(int(period), (10 ** len(period) - 1) * scale)
    return Fraction(int((before or "0") + fixed[0]), scale) + repeated
