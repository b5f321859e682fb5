"""Answers to run as code, by kind: cheats, right answers, functions with their tests, programs. A file of each.

A case is a line ``### name``, its code, and parts that each begin with a line ``--- label``. The cheats run in a
sandbox only.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent / "grpo_core/rewards/code_cases"
Parts = list[tuple[str, str]]

ADD = ["assert add(1, 2) == 3", "assert add(-1, 5) == 4", "assert add(0, 0) == 0"]
BODY = "def add(a, b):\n    return a + b\n"
PROMPT = """from typing import List


def total(xs: List[int]) -> int:
    \"\"\" The sum of xs.
    >>> total([1, 2])
    3
    \"\"\"
"""
TOTAL = "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n"


def cases(name: str) -> dict[str, tuple[str, Parts]]:
    """The code and the labelled parts of each case of a file."""
    found: dict[str, tuple[str, Parts]] = {}
    for section in (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").split("### ")[1:]:
        title, _, text = section.partition("\n")
        code, *parts = text.rstrip("\n").split("\n--- ")
        assert title not in found, f"{name} has two cases {title!r}"
        found[title] = code, [(label, part) for label, _, part in (part.partition("\n") for part in parts)]
    return found


CHEATS = {title: code for title, (code, _) in cases("cheats").items()}
"""Answers that must not pass ADD."""

RIGHT_ANSWERS = {title: text for title, (text, _) in cases("answers").items()}
"""Responses that pass ADD."""

FUNCTIONS = {title: (code, [test for _, test in parts]) for title, (code, parts) in cases("functions").items()}
"""Code and its tests, which do not say what is tested."""

PROGRAMS = {
    title: (code, given, wanted, verdict)
    for title, (code, [(_, given), (verdict, wanted)]) in cases("programs").items()
}
"""Code, input, wanted output, verdict."""
