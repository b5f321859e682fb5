r"""Multiple-choice letters: ``(B)``, ``b)``, ``B. Paris``, ``Option B``, ``\textbf{(B)}\ 12``, ``选项B``.

One letter is an answer, several are none: ``A or B`` is not read as a choice.
"""

import re
from dataclasses import dataclass

_ALONE = re.compile(
    r"(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer|letter)s?\s*(?:is|:|=)?\s*|选项?|故选|应选|选择)?\s*"
    r"[(\[{]?\s*(?P<letter>[A-Za-z])\s*[)\]}]?\s*[.:)]?",
    re.IGNORECASE,
)
_WITH_TEXT = re.compile(
    r"(?:(?:option|choice)\s*)?(?:[(\[]\s*(?P<bracketed>[A-Ja-j])\s*[)\]]\s*[.:]?\s*|(?P<marked>[A-Ja-j])\s*(?:[.:)]|\s[-–])\s+|(?P<tight>[A-J])[.:)](?=\S))"
    r"(?P<rest>\S.*)",
    re.DOTALL,
)
_SPACED = re.compile(r"(?P<letter>[A-J])\s+(?P<rest>[A-Z][a-z].*)", re.DOTALL)
_SEVERAL = re.compile(
    r"\A(?:and|or|,|/|;|&|\+|-|\*|=|\^|[(\[]?[A-J][)\]]|[A-J]\b(?!\s+[a-z]))|\b(?:or|and|/)\s*[(\[]?[A-J][)\].,]?\s*(?:\Z|\W)",
    re.IGNORECASE,
)


_LETTERS = re.compile(r"[(\[{]?[A-H][)\]}]?(?:\s*(?:,|;|and|&|、)?\s*(?:and\s+)?[(\[{]?[A-H][)\]}]?){1,7}")


def choices(text: str) -> frozenset[str]:
    """The letters of a question with several right ones: ``A, C``, ``AC``, ``(A) and (C)``; empty for other text."""
    if len(text) > 60 or not _LETTERS.fullmatch(text):
        return frozenset()
    return frozenset(re.findall(r"[A-H]", text.replace("and", "")))


@dataclass(frozen=True, slots=True)
class Choice:
    """A letter, upper case, and the text of the option where it was given."""

    letter: str
    text: str = ""


def choice(text: str) -> Choice | None:
    """The one choice that ``text`` (``normalise.canonical``) states, or None."""
    if len(text) > 300:
        return None
    alone = _ALONE.fullmatch(text)
    if alone is not None:
        return Choice(alone["letter"].upper())
    match = _WITH_TEXT.fullmatch(text) or _SPACED.fullmatch(text)
    if match is None or _SEVERAL.search(match["rest"]):
        return None
    letter = (
        match["letter"] if "letter" in match.groupdict() else match["bracketed"] or match["marked"] or match["tight"]
    )
    return Choice(letter.upper(), match["rest"].strip())
