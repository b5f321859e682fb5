"""From a row of the data to what became of it, and from there to its rollouts and verdicts."""

from typing import Any

from grpo_core.audit.connection import Audit
from grpo_core.errors import UserError

_FATES = """
SELECT source, source_row, 'train' AS fate, prompt_id, prompt, gold, '' AS reason, '' AS detail FROM prompts
UNION ALL SELECT source, source_row, 'held out', prompt_id, prompt, gold, '', '' FROM held_out
UNION ALL SELECT source, source_row, 'rejected', NULL, prompt, gold, reason, detail FROM rejected
"""


def parse_source(audit: Audit, text: str) -> tuple[str, int | None]:
    """A source's name and the row asked for, from ``NAME`` or ``NAME:ROW``; a name may hold colons itself.

    The end of a name is enough where only one source ends so. Raises UserError for a source that the run doesn't have.
    """
    known = [row["source"] for row in audit.ask(f"SELECT DISTINCT source FROM ({_FATES}) ORDER BY source")]
    name, colon, row = text.rpartition(":")
    asked: list[tuple[str, int | None]] = [(text, None)]
    if colon and row.isdigit():
        asked.append((name, int(row)))
    for wanted, number in asked:
        matching = [s for s in known if s == wanted] or [s for s in known if wanted and s.endswith(wanted)]
        if len(matching) == 1:
            return matching[0], number
        if matching:
            raise UserError(f"--source {text!r} stands for several ({', '.join(matching)}); give more of the name.")
    there = ", ".join(known) or "not read yet"
    raise UserError(f"--source {text!r}: the run's sources are {there}; a row of one is NAME:ROW.")


def rows_of(audit: Audit, source: str, source_row: int | None) -> list[dict[str, Any]]:
    """What became of the rows of a source: ``fate`` (train, held out or rejected), the prompt, and why it was rejected.

    Raises:
        UserError: the source has no such row.
    """
    which = "" if source_row is None else " AND source_row = $row"
    given: dict[str, Any] = {"source": source} | ({} if source_row is None else {"row": source_row})
    rows = audit.ask(f"SELECT * FROM ({_FATES}) WHERE source = $source{which} ORDER BY source_row, fate", given)
    if not rows:
        raise UserError(f"--source: row {source_row} of '{source}' is not in the run; a source's rows count from 0.")
    return rows


def answers(audit: Audit, prompt_ids: list[str]) -> list[dict[str, Any]]:
    """The answers that evaluations gave to held-out prompts."""
    return audit.ask(
        "SELECT round, prompt_id, mode, sample_index, verdict, extracted, gold, reward, text FROM evaluation "
        "WHERE prompt_id IN (SELECT unnest($ids)) ORDER BY round, prompt_id, mode, sample_index",
        {"ids": prompt_ids},
    )
