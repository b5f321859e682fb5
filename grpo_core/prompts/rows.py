"""What a source gives: one row, with raw cells."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row as the source holds it: its index from 0, and raw cells.

    Attributes:
        solution: a worked solution, with which the gold must agree.
        extra: what the row's reward needs besides (``tests``, ``entry_point``, …); plain JSON values.
        order: what a curriculum by column sorts by; None where the cell holds no number.
    """

    index: int
    prompt: object
    gold: object
    solution: object = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    order: float | None = None
