"""A row on its way through the filters, and the record of those that were refused."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from grpo_core.prompts.config import SourceConfig
from grpo_core.prompts.filters_text import Tokens, tokens_of
from grpo_core.prompts.gold import NotTextError, as_text, extract_gold
from grpo_core.prompts.gold_check import GoldRow
from grpo_core.prompts.sources import SourceRow
from grpo_core.schemas import REJECTED

Rows = tuple[SourceConfig, Iterable[SourceRow]]
"""A source, and the rows that were read from it."""

_SHOWN_CHARACTERS = 80
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def prompt_identity(question: str) -> str:
    """The id of a question: 16 hex digits of sha256 over its stripped text. No template enters it."""
    return hashlib.sha256(question.strip().encode()).hexdigest()[:16]


def shown(text: str) -> str:
    """A text for a sentence: quoted, and only its end where it is long."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"…{text[-_SHOWN_CHARACTERS:]}")


@dataclass(frozen=True)
class Candidate:
    """A row that has a prompt and a gold.

    Attributes:
        place: of its source among all sources, training ones first.
        index: of the row in its source.
        ids: the prompt as the model gets it; filled in by the filter on length.
    """

    place: int
    source: SourceConfig
    is_eval: bool
    index: int
    question: str
    gold: str
    solution: str | None
    extra: Mapping[str, Any]
    order: float | None
    ids: list[int] = field(default_factory=list)

    @cached_property
    def prompt_id(self) -> str:
        """See :func:`prompt_identity`."""
        return prompt_identity(self.question)

    @cached_property
    def tokens(self) -> Tokens:
        """See :func:`~grpo_core.prompts.filters_text.tokens_of`."""
        return tokens_of(self.question)

    @property
    def name(self) -> str:
        """What a sentence calls it."""
        return row_name(self.source.label, self.index)

    @property
    def to_check(self) -> GoldRow:
        """What a check of its gold needs."""
        return GoldRow(self.question, self.gold, self.solution, self.extra, self.source.label)

    def kept(self, prompt: str) -> dict[str, Any]:
        """Its row of ``schemas.PROMPTS``."""
        return {
            "prompt_id": self.prompt_id,
            "source": self.source.label,
            "source_row": self.index,
            "prompt": prompt,
            "gold": self.gold,
            "prompt_ids": self.ids,
            "solution": self.solution,
            "extra": json.dumps(self.extra, sort_keys=True, ensure_ascii=False) if self.extra else None,
            "order": self.order,
        }


def row_name(source: str, index: int) -> str:
    """What a sentence calls a row."""
    return f"row {index} of {source}"


class Rejections:
    """The refused rows with their reasons."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, dict[str, Any]]] = []

    def add(self, row: Candidate, reason: str, detail: str) -> None:
        """Refuse a candidate."""
        self.add_unread(row.place, row.source, row.index, (row.question, row.gold), reason, detail)

    def add_unread(
        self,
        place: int,
        source: SourceConfig,
        index: int,
        texts: tuple[str | None, str | None],
        reason: str,
        detail: str,
    ) -> None:
        """Refuse a row that never became a candidate; ``texts`` are its prompt and gold, as far as they are text."""
        columns = (source.label, index, *texts, reason, detail)
        self._rows.append((place, index, dict(zip(REJECTED.names, columns, strict=True))))

    def table(self) -> pa.Table:
        """All of them in the order of the sources (``schemas.REJECTED``)."""
        ordered = sorted(self._rows, key=lambda row: row[:2])
        return pa.Table.from_pylist([columns for _, _, columns in ordered], schema=REJECTED)


def candidates(rows: Rows, place: int, is_eval: bool, rejections: Rejections) -> list[Candidate]:
    """The rows of one source that have a prompt and a gold; the others are refused."""
    source, found = rows
    kept = []
    for row in found:
        question, cell, reason, detail = _texts(row)
        gold = extract_gold(cell, source.gold_format) if cell else None
        if not reason and gold is None:
            reason, detail = "no_gold", _why_no_gold(cell, source)
        if reason or question is None or gold is None:
            rejections.add_unread(place, source, row.index, (question, gold or cell), reason, detail)
            continue
        # A cell that is more than the gold taken from it is a worked solution itself.
        solution = _solution(row) or (cell if gold != cell else None)
        kept.append(
            Candidate(place, source, is_eval, row.index, question, gold, solution, row.extra, _order(row.order))
        )
    return kept


def _texts(row: SourceRow) -> tuple[str | None, str | None, str, str]:
    """Prompt and gold cell as text, then the reason and its detail, blank when the prompt can be used."""
    texts: list[str | None] = []
    reason = detail = ""
    for place, value in (("prompt", row.prompt), ("gold", row.gold)):
        try:
            texts.append(as_text(value))
        except NotTextError as error:
            texts.append(None)
            reason, detail = "not_text", detail or f"the {place} is {error}"
    question, cell = texts
    if not reason and not question:
        reason, detail = "empty_prompt", "null" if question is None else "blank"
    return question, cell, reason, detail


def _why_no_gold(cell: str | None, source: SourceConfig) -> str:
    if not cell:
        return "null" if cell is None else "blank"
    return f"no {source.gold_format} gold in {shown(cell)}"


def _solution(row: SourceRow) -> str | None:
    try:
        # Not stripped: the first line of code may be indented.
        return row.solution if isinstance(row.solution, str) else as_text(row.solution)
    except NotTextError:
        return None


def _order(value: object) -> float | None:
    """A number, or the first in a text (``Level 5``)."""
    if isinstance(value, str):
        found = _NUMBER.search(value)
        value = float(found.group()) if found else None
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
