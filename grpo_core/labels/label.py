"""A label: one thing that one person said of one rollout, and what its name and value mean."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from grpo_core.schemas import LABELS

_VERDICTS = {
    "ok": ("ok", "true", "yes", "correct", "right"),
    "wrong": ("wrong", "false", "no", "incorrect"),
    "unparsable": ("unparsable",),
}
_VERDICT_OF = {word: verdict for verdict, words in _VERDICTS.items() for word in words}
_GOLD_NAMES = ("gold", "expected_response", "expected_answer")


@dataclass(frozen=True, slots=True)
class Label:
    """One row of ``LABELS``; see there."""

    rollout_id: str
    prompt_id: str
    round: int
    kind: str
    name: str
    value: str
    who: str
    at: str
    rationale: str
    trace_id: str
    assessment_id: str
    extracted: str | None
    completion: str
    reward: float | None


def meaning(name: str, value: Any, *, is_expectation: bool) -> tuple[str, str]:
    """Kind and value of what a person said under a name, by the convention of docs/people.md.

    What the convention does not know is a ``comment``: it is kept and shown, and changes nothing.

    Args:
        value: a JSON value; None where the person only gave a reason.
    """
    text = value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    plain, word = name.strip().lower(), text.lower()
    if is_expectation:
        return ("gold", text) if plain in _GOLD_NAMES and text and value is not None else ("comment", text)
    if plain == "verdict" and word in _VERDICT_OF:
        return "verdict", _VERDICT_OF[word]
    if plain == "tier" and (tier := _tier(word)) is not None:
        return "tier", tier
    return "comment", "" if value is None else text


def _tier(word: str) -> str | None:
    """``top``, ``bottom`` or a tier's number, 0 the lowest; None for anything else."""
    if word in ("top", "bottom"):
        return word
    try:
        number = float(word)
    except ValueError:
        return None
    return str(int(number)) if number.is_integer() and number >= 0 else None


def latest(labels: Iterable[Label]) -> list[Label]:
    """The last word of each person on each rollout and kind (comments: and name), in a fixed order."""
    last: dict[tuple[str, ...], Label] = {}
    for label in sorted(labels, key=lambda one: (one.at, one.assessment_id)):
        last[label.rollout_id, label.kind, label.who, label.name if label.kind == "comment" else ""] = label
    return sorted(last.values(), key=lambda one: (one.round, one.rollout_id, one.kind, one.who, one.name))


def to_table(labels: Iterable[Label]) -> pa.Table:
    names = [field.name for field in fields(Label)]
    return pa.Table.from_pylist([{name: getattr(label, name) for name in names} for label in labels], schema=LABELS)


def from_table(table: pa.Table) -> list[Label]:
    return [Label(**row) for row in table.to_pylist()]
