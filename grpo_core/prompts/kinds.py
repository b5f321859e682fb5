"""Kinds of problems that some training can't use: proofs, whose gold is no value, and choices, which can be guessed."""

import re

_PROOF = re.compile(
    r"(?:\A|[.!?;:,]\s+|\n\s*|\band\s+|\bthen\s+)(?:please\s+)?"
    r"(?:prove|disprove|(?:show|demonstrate)\s+(?:that|the\s+following|there|why|if)|give\s+a\s+proof"
    r"|(?:write|provide)\s+a\s+(?:\w+\s+)?proof)(?![A-Za-z])",
    re.IGNORECASE,
)
_ASKS_VALUE = re.compile(
    r"\b(?:find|compute|determine|calculate|evaluate|how\s+(?:many|much|long|far|old)|what(?:'s|\s+is|\s+are|\s+was)"
    r"|which\s+of|give\s+the|express|solve\s+for)\b",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?:\((?P<round>[A-Za-z])\)"
    r"|(?:^|[\s{$])\(?(?P<half>[A-Za-z])\)(?=[\s}$~:\\])"
    r"|^[ \t]*(?:[-*][ \t]*)?(?:\*\*)?(?P<line>[A-Z])(?:\*\*)?[.:][ \t]*(?=\S))",
    re.MULTILINE,
)
_DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)  # Asymptote, full of labelled points
_LEAST_CHOICES = 3
_WHICH = re.compile(r"\b(?:which|choose|select|pick|option|choice|answer)", re.IGNORECASE)


def is_proof(prompt: str) -> bool:
    """Whether a prompt asks for a proof and for no value."""
    return bool(_PROOF.search(prompt)) and not _ASKS_VALUE.search(prompt)


def is_multiple_choice(prompt: str) -> bool:
    r"""Whether at least three choices, lettered in order from A, stand in a prompt.

    ``(A) … (B) … (C) …``, ``A) …``, ``A. …`` at the start of lines, LaTeX's ``\textbf{(A)}``. Small letters, with which
    parts of a problem are numbered too, count only where the prompt speaks of choosing.
    """
    labels = [next(filter(None, match.groups())) for match in _LABEL.finditer(_DRAWING.sub(" ", prompt))]
    if _in_order(labels, "A"):
        return True
    return _in_order(labels, "a") and bool(_WHICH.search(prompt))


def _in_order(labels: list[str], first: str) -> bool:
    wanted = [chr(ord(first) + place) for place in range(_LEAST_CHOICES)]
    return any(labels[start : start + _LEAST_CHOICES] == wanted for start in range(len(labels)))
