r"""The spellings of one answer made one: what a check compares first, before any computer algebra.

``bare`` takes off what stands around an answer, ``canonical`` makes one LaTeX of it, ``plain`` is that without spaces.
Only what cannot change the meaning is changed: delimiters, bold, tags, trailing punctuation, spacing commands,
sizes and fonts, ``\dfrac``, Unicode.
"""

import re
from fractions import Fraction

from grpo_core.rewards.characters import ascii_math
from grpo_core.rewards.number_words import words_value

MAX_DIGITS = 100
"""Longest run of digits read as a number here; beyond it only equal texts are equal."""

_WRAPPERS = (
    ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("*", "*"), ("__", "__"), ("`", "`"),
    ('"', '"'), ("'", "'"), ("{", "}"), (r"\{{", r"\}}"),
)  # fmt: skip
_COMMAND_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|boxed|fbox|bf|rm|bold|underline)\s*\{"
)
_TAG = re.compile(r"</?(?:answer|b|i|em|strong|p|span|div|code|sub|br|final_answer|result)\s*/?>", re.IGNORECASE)
_LEAD = re.compile(
    r"\A(?:(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|result|solution)\s*(?:is|are|:|=)+\s*:?|(?:is|are|equals)\s+"
    r"|approximately|approx\.?|about|roughly|exactly|around|nearly|almost|only|just|simply|~|\\approx|\\sim|=|:|\\therefore"
    r"|答案(?:是|为|:)?|约|大约|共|等于|为|是)(?![A-Za-z])\s*(?=\S)",
    re.IGNORECASE,
)
_END = " \t\r\n.,;:?~\\"
_NEGATIVE_SPACE = re.compile(r"(?<!\\)\\!\s*")
_SPACING = re.compile(
    r"(?<!\\)\\[,;:> ]|\\q?quad(?![A-Za-z])|\\(?:thinspace|enspace|newline|hspace\*?\{[^{}]*\})|[~\s]+"
)
_SIZES = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|large|Large|LARGE|huge|Huge|small|tiny|normalsize|boldmath|mathstrut|strut|hfill|smash|middle)(?![A-Za-z])\s*\.?(?=\s*[\[\](){}|\\]|\s*\S)"
)
_COLOUR = re.compile(
    r"\\(?:text)?color\s*(?:\[[A-Za-z]+\])?\{[^{}]{0,30}\}|\\[hv]?phantom\{[^{}]{0,30}\}|(?:\\n(?![A-Za-z]))+\Z|\A(?:\\n(?![A-Za-z]))+"
)
_MINUS_WORD = re.compile(r"\A(?:minus|negative)\s+(?=[0-9.\\(])", re.IGNORECASE)
_LABEL = re.compile(
    r"\A(?P<words>[A-Za-z]{2,}(?:\s+[A-Za-z]+){0,6})\s*(?::|(?<![A-Za-z])is|(?<=[a-z]{4}\s)=)\s+(?=[-+0-9$.(\\])"
)
_LETTER_IS = re.compile(r"\A[a-z]\s+(?:is|equals)\s+(?:equal\s+to\s+)?(?=[-+0-9$.(\\])")
_LABEL_DENIED = re.compile(
    r"\b(?:not|no|or|and|if|than|least|most|never|unless|wrong|incorrect|sin|cos|tan|log|ln|option|choice|lambda|return|print|def|import)\b",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|mathsf|mathtt|mathcal|mbox|boldsymbol|"
    r"operatorname\*?|emph|underline|boxed|fbox|hbox|bold|mathnormal|pmb|bm|textsl|textsc|mathop)\s*\{([^{}]*)\}"
)
_COMMANDS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "leq": "le",
    "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">", "ast": "*", "colon": ":",
    "lvert": ""
    "|", "rvert": "|",
    "vert": "|", "mid": ""
    "|", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")",
    "backslash": "\\setminus", "minus": "-", "varnothing": "emptyset", "degree": "^\\circ", "land": " and ",
    "lor": " or ",
    "textdegree": "^\\circ", "bullet": "cdot", "centerdot": "cdot", "imath": "i", "dots": "ldots", "cdots": "ldots",
    "dotsc": "ldots", "dotsb": "ldots", "Longrightarrow": "Rightarrow", "implies": "Rightarrow", "arcsin": "arcsin",
    "dollar": "$", "pounds": "£", "euro": "€", "percent": "%", "simeq": "approx", "cong": "approx", "doteq": "approx",
    "sup": "sup", "union": "cup", "bigcup": "cup", "bigcap": "cap", "owns": "ni", "R": "mathbb{R}", "Z": "mathbb{Z}",
}  # fmt: skip
_COMMAND = re.compile(r"\\(" + "|".join(sorted(_COMMANDS, key=len, reverse=True)) + r")(?![A-Za-z])")
_DOUBLE_COMMAND = re.compile(r"\\\\(?=[A-Za-z({\[\])}])")
_ORDINAL = re.compile(r"(?<=[0-9])\s*\^?\s*\{?\s*(?:st|nd|rd|th)\s*\}?\Z")
_RESIDUE = re.compile(r"\s*\(?\s*(?:\\pmod\s*\{?[^{}()]{1,20}\}?|\((?:\\?bmod|\\?mod)\s*[^()]{1,20}\))\s*\)?\Z")
_CROSS = re.compile(r"(?<=[0-9])\s*[xX]\s*(?=10\s*\^)|(?<=[0-9])\s+[xX]\s+(?=[0-9])")
_OLD_DEGREES = re.compile(r"(?<=[0-9])\s*\^\s*(?:\{\s*o\s*\}|o)(?=\Z|\s*[CF]\Z)")
_INFIX = re.compile(r"\{(?P<top>[^{}]*)\\(?P<name>choose|over)(?![A-Za-z])(?P<bottom>[^{}]*)\}")
_INFIX_NAMES = {"choose": "binom", "over": "frac"}
_BASE_AFTER = re.compile(
    r"(?<=[0-9A-F])\s*(?:\(\s*(?:in\s+)?base[\s-]+(?P<inside>[a-z]+|[0-9]{1,2})\s*\)|(?:in\s+)?base[\s-]+(?P<base>[a-z]+|[0-9]{1,2}))\Z"
)
_BASE_BELOW = re.compile(
    r"(?:\((?P<grouped>[0-9A-F]+)\)|(?P<digits>[0-9A-F]+))\s*_\s*"
    r"(?:\{?\s*\(?\s*(?:base\s+)?(?P<base>[0-9]{1,2}|[a-z]{3,7})\s*\)?\s*\}?)\Z"
)
_LOOSE_SPACE = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")
_DECIMAL = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<whole>[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+)(?P<part>\.[0-9]*)?"
    r"|(?P<bare>\.[0-9]+))(?P<exponent>[eE][-+]?[0-9]{1,3})?"
)
_QUOTIENT = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<top>[0-9]+)/(?P<bottom>[0-9]+)"
    r"|\\frac\s*(?:\{(?P<top_group>-?[0-9]+)\}|(?P<top_digit>[0-9]))\s*(?:\{(?P<bottom_group>[0-9]+)\}|(?P<bottom_digit>[0-9])))"
)


def bare(answer: str) -> str:
    """The answer without what stands around it: delimiters, bold, tags, a wrapping command, trailing punctuation."""
    text = _TAG.sub(" ", ascii_math(answer)) if "<" in answer else ascii_math(answer)
    text = text.replace("{,}", ",")
    previous = None
    while text != previous:
        previous = text
        text = _unwrapped(_ended(text.strip()))
        text = _LEAD.sub("", text, count=1).lstrip()
    return text


def canonical(answer: str) -> str:
    r"""One LaTeX spelling of an answer, words unwrapped: ``\dfrac{1}{2}\text{ cm}`` is ``\frac{1}{2} cm``."""
    text = bare(answer)
    if "\\" in text:
        if "\\begin" not in text:
            text = _DOUBLE_COMMAND.sub(r"\\", text)
        text = _NEGATIVE_SPACE.sub("", text)
        text = _COMMAND.sub(_renamed, text)
        for _ in range(4):
            unwrapped = _NAMED.sub(r" \1 " if "\\text" in text or "\\mbox" in text else r"\1", text)
            if unwrapped == text:
                break
            text = unwrapped
        text = _SIZES.sub("", _COLOUR.sub("", text))
    text = (
        _SPACING.sub(" ", _CROSS.sub(r"\\times ", text))
        .replace(r"\%", "%")
        .replace(r"\&", "&")
        .replace(r"\#", "#")
        .strip()
    )
    text = _MINUS_WORD.sub("-", text)
    if "\\choose" in text or "\\over" in text:
        text = _fractions(text)
    text = _OLD_DEGREES.sub(r"^\\circ", text)
    if "base" in text or "_" in text:
        text = _based(text)
    text = _LETTER_IS.sub("", text)
    label = _LABEL.match(text)
    if label is not None and not _LABEL_DENIED.search(label["words"]):
        text = text[label.end() :]
    text = _RESIDUE.sub("", _ORDINAL.sub("", text))
    return bare(text) if text != answer else text


def plain(answer: str) -> str:
    """The answer in its plainest spelling, to be compared as text or read by ``number``; may be empty."""
    return _LOOSE_SPACE.sub("", canonical(answer))


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


def _fractions(text: str) -> str:
    r"""``{5 \choose 2}`` and ``1 \over 2``, which stand between their parts, as commands that stand before them."""
    named = _INFIX.sub(
        lambda infix: f"\\{_INFIX_NAMES[infix['name']]}{{{infix['top'].strip()}}}{{{infix['bottom'].strip()}}}",
        f"{{{text}}}",
    )
    return named[1:-1] if named.startswith("{") else named


def _based(text: str) -> str:
    """The base of a number as one subscript: ``(204)_5``, ``204 base 5``, ``204_{five}`` are ``204_{5}``."""
    text = _BASE_AFTER.sub(lambda base: f"_{base['inside'] or base['base']}", text)
    match = _BASE_BELOW.fullmatch(text)
    if match is None:
        return text
    base = match["base"] if match["base"].isdigit() else words_value(match["base"])
    return text if base is None else f"{match['grouped'] or match['digits']}_{{{base}}}"


def _ended(text: str) -> str:
    """Without what ends a sentence; an exclamation mark behind a value is a factorial and stays."""
    previous = None
    while text != previous:
        previous = text
        if text.endswith("...") and text[-4:-3].isdigit():
            return text  # the digits go on
        text = text.rstrip(_END).removesuffix("\\qquad").removesuffix("\\quad")
        if text.endswith("!") and not (text[-2:-1].isalnum() or text[-2:-1] in "!}])"):
            text = text.rstrip("!")
    return text


def _renamed(match: re.Match[str]) -> str:
    name = _COMMANDS[match[1]]
    return f"\\{name} " if name[:1].isalpha() else name + (" " if name else "")


def _unwrapped(text: str) -> str:
    """Takes one pair of delimiters off the whole text, where there is one that spans it."""
    for start, end in _WRAPPERS:
        inner = text[len(start) : -len(end)]
        if len(text) > len(start) + len(end) and text.startswith(start) and text.endswith(end) and start not in inner:
            if start == "{" and ("," in inner or inner.endswith("\\") or "}" in inner):
                continue  # a set without its backslashes, or two groups
            if start in ("$", "*", "'", "`") and end in inner:
                continue
            return inner
    command = _COMMAND_WRAPPER.match(text)
    if command is not None and text.endswith("}") and _closes_at_end(text, command.end()):
        return text[command.end() : -1]
    return text


def _closes_at_end(text: str, start: int) -> bool:
    """Whether the brace opened just before ``start`` is closed by the last character."""
    open_braces = 1
    for place in range(start, len(text)):
        if text[place] in "{}" and text[place - 1] != "\\":
            open_braces += 1 if text[place] == "{" else -1
            if not open_braces:
                return place == len(text) - 1
    return False
