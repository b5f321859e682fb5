"""How rows of known shapes are read: GSM8K, MATH, HumanEval, MBPP, and any other by the names of its columns.

An adapter takes the columns of the original data sets, as the hub and their authors' files have them. The keys of a
source win over it: ``prompt_column``, ``gold_column``, ``solution_column`` and ``order_column`` name another column for
what the adapter would read.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from grpo_core.errors import UserError
from grpo_core.prompts.config import GOLD_COLUMNS, PROMPT_COLUMNS, SourceKeys
from grpo_core.prompts.gold import extract_gold
from grpo_core.prompts.rows import SourceRow

Row = Mapping[str, Any]
Reader = Callable[[int, Row], SourceRow]

# A column may be absent from some rows of a JSONL file; this many are looked at before it counts as missing.
_ROWS_FOR_COLUMNS = 100
_TESTS = "tests"
_BESIDE_TESTS = ("entry_point", "mode")  # what the code reward reads of a row that has tests
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def read_rows(rows: Iterator[Row], config: SourceKeys) -> Iterator[SourceRow]:
    """Rows of a data set as prompts with their golds, by the source's adapter; a key that a row lacks reads as null.

    Raises:
        UserError: there are no rows, or none of the first hundred has a column that the adapter or a key names; later,
            when a cell that the reward needs can't be kept.
    """
    first = list(islice(rows, _ROWS_FOR_COLUMNS))
    if not first:
        raise UserError(f"data.source '{config.source}' has no rows; give one that has.")
    columns = _Columns(config, list(dict.fromkeys(column for row in first for column in row)))
    for name in config.extra_columns:
        if name not in columns.names:
            raise UserError(
                f"data.extra_columns: '{config.source}' has no column '{name}', only {', '.join(columns.names)}."
            )
    read = _READERS[config.reads_as](columns)
    for index, row in enumerate(chain(first, rows)):
        yield read(index, row)


def as_number(cell: object) -> float | None:
    """A number, or the first one in a text (``Level 3`` is 3.0); None where there is none that is finite."""
    if isinstance(cell, str):
        found = _NUMBER.search(cell)
        cell = None if found is None else found.group()
    try:
        number = float(cell)  # type: ignore[arg-type]  # whatever can't be one says so
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


class _Columns:
    """The columns of a source, and which of them the config and its adapter mean."""

    def __init__(self, config: SourceKeys, names: Sequence[str]) -> None:
        self.config = config
        self.names = names

    def keyed(self, key: str, usual: Sequence[str]) -> str:
        """The column that a key names, or for ``auto`` (or null) the first there is of the usual ones."""
        wanted = getattr(self.config, key)
        if wanted not in (None, "auto"):
            if wanted in self.names:
                return str(wanted)
            missing = f"no column '{wanted}'"
        elif self.config.reads_as != "plain":
            return self.needed(*usual)
        else:
            if found := next((name for name in usual if name in self.names), None):
                return found
            missing = f"none of the usual columns ({', '.join(usual)})"
        raise UserError(
            f"data.{key}: '{self.config.source}' has {missing}; set it to one of "
            f"{', '.join(self.names) or 'its columns'}."
        )

    def needed(self, *usual: str) -> str:
        """The first there is of the columns of which the adapter needs one."""
        if found := next((name for name in usual if name in self.names), None):
            return found
        raise UserError(
            f"data.adapter: '{self.config.source}' has no column '{usual[0]}', which the adapter "
            f"{self.config.reads_as} reads, only {', '.join(self.names) or 'empty rows'}; take the adapter plain and "
            "name its columns."
        )

    def order(self, usual: str | None = None) -> str | None:
        """The column that a curriculum sorts by."""
        if self.config.order_column is None:
            return usual if usual in self.names else None
        return self.keyed("order_column", ())

    def extra(self, row: Row, *names: str) -> dict[str, Any]:
        """The cells that the row's reward needs, as JSON can hold them; columns that the row lacks are left out."""
        kept = {}
        for name in (*names, *self.config.extra_columns):
            if row.get(name) is not None:
                try:
                    kept[name] = to_jsonable_python(row[name], inf_nan_mode="null")
                except (PydanticSerializationError, UnicodeDecodeError) as error:
                    raise UserError(
                        f"data.source '{self.config.source}': column '{name}' holds a {type(row[name]).__name__}, "
                        "which no JSON can hold; write it as text, lists or objects."
                    ) from error
        return kept


def _plain(columns: _Columns) -> Reader:
    config = columns.config
    prompt = columns.keyed("prompt_column", PROMPT_COLUMNS)
    has_gold = config.gold_column != "auto" or any(name in columns.names for name in GOLD_COLUMNS)
    # Code may come with nothing but its tests; they are all there is to show as its gold.
    gold = columns.keyed("gold_column", GOLD_COLUMNS) if has_gold or _TESTS not in columns.names else None
    solution = columns.keyed("solution_column", ()) if config.solution_column else None
    order = columns.order()

    def read(index: int, row: Row) -> SourceRow:
        tests = (_TESTS, *_BESIDE_TESTS) if row.get(_TESTS) is not None else ()
        return SourceRow(
            index,
            row.get(prompt),
            _as_source(row.get(_TESTS)) if gold is None else row.get(gold),
            row.get(solution) if solution else None,
            columns.extra(row, *tests),
            as_number(row.get(order)) if order else None,
        )

    return read


def _gsm8k(columns: _Columns) -> Reader:
    prompt, gold = columns.keyed("prompt_column", ("question",)), columns.keyed("gold_column", ("answer",))
    solution = columns.keyed("solution_column", ()) if columns.config.solution_column else None
    order = columns.order()

    def read(index: int, row: Row) -> SourceRow:
        worked = row.get(solution) if solution else _before_hashes(row.get(gold))
        found = as_number(row.get(order)) if order else None
        return SourceRow(index, row.get(prompt), row.get(gold), worked, columns.extra(row), found)

    return read


def _math(columns: _Columns) -> Reader:
    prompt, gold = columns.keyed("prompt_column", ("problem",)), columns.keyed("gold_column", ("answer", "solution"))
    has_solution = columns.config.solution_column is not None or "solution" in columns.names
    solution = columns.keyed("solution_column", ("solution",)) if has_solution else None
    order = columns.order("level")

    from_solution = gold == "solution" and columns.config.gold_format == "auto"

    def read(index: int, row: Row) -> SourceRow:
        worked = row.get(solution) if solution else None
        answer = row.get(gold)
        if from_solution and isinstance(answer, str):
            answer = extract_gold(answer, "boxed")  # auto would take a whole solution that boxes nothing for the answer
        level = as_number(row.get(order)) if order else None
        return SourceRow(index, row.get(prompt), answer, worked, columns.extra(row), level)

    return read


def _humaneval(columns: _Columns) -> Reader:
    prompt, test = columns.keyed("prompt_column", ("prompt",)), columns.needed("test")
    entry_point, reference = columns.needed("entry_point"), columns.keyed("gold_column", ("canonical_solution",))
    is_body = reference == "canonical_solution"

    def read(index: int, row: Row) -> SourceRow:
        code, rest = row.get(prompt), row.get(reference)
        if not isinstance(code, str):
            return SourceRow(index, code, None)
        program = f"{code}{rest}" if is_body and isinstance(rest, str) else rest
        extra = columns.extra({**row, _TESTS: row.get(test), "prompt": code}, _TESTS, "entry_point", "prompt")
        asked = (
            f"Complete the Python function {row.get(entry_point)}. Give the whole of it in a ```python block.\n\n"
            f"{_fenced(code)}"
        )
        return _code_row(columns, index, row, asked, program, extra)

    return read


def _mbpp(columns: _Columns) -> Reader:
    prompt, tests = columns.keyed("prompt_column", ("prompt", "text")), columns.needed("test_list")
    reference = columns.keyed("gold_column", ("code",))

    def read(index: int, row: Row) -> SourceRow:
        text, listed = row.get(prompt), _lines(row.get(tests))
        if not isinstance(text, str) or not listed:
            return SourceRow(index, text, None)
        before = _lines(row.get("test_imports")) + _lines(row.get("test_setup_code"))
        extra = columns.extra({**row, _TESTS: [*before, *listed]}, _TESTS)
        # The name and the arguments stand nowhere but in the tests. One shows them; the others stay hidden, so that
        # code which only knows what was shown is wrong.
        asked = (
            f"{text.strip()} Give the code in a ```python block. It has to pass this test, among others:\n\n"
            f"{_fenced(listed[0])}"
        )
        return _code_row(columns, index, row, asked, row.get(reference), extra)

    return read


_READERS: dict[str, Callable[[_Columns], Reader]] = {
    "plain": _plain,
    "gsm8k": _gsm8k,
    "math": _math,
    "humaneval": _humaneval,
    "mbpp": _mbpp,
}


def _code_row(
    columns: _Columns, index: int, row: Row, asked: str, program: object, extra: Mapping[str, Any]
) -> SourceRow:
    """A row whose gold is its reference program (what is to be seen beside a response), and whose tests are extra."""
    if columns.config.solution_column:
        solution = row.get(columns.keyed("solution_column", ()))
    else:
        solution = _fenced(program) if isinstance(program, str) else None
    order = columns.order()
    return SourceRow(
        index,
        asked,
        program if extra.get(_TESTS) else None,
        solution,
        extra,
        as_number(row.get(order)) if order else None,
    )


def _fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def _lines(cell: object) -> list[str]:
    """A cell that holds a list of source text, or one."""
    parts = [cell] if isinstance(cell, str) else cell if isinstance(cell, Sequence) else ()
    return [str(part) for part in parts if part]


def _as_source(tests: object) -> object:
    """Tests as one text, where they are Python source."""
    if isinstance(tests, Sequence) and not isinstance(tests, str) and all(isinstance(test, str) for test in tests):
        return "\n".join(tests)
    return str(tests) if tests else None


def _before_hashes(cell: object) -> str | None:
    """GSM8K's worked solution: what stands before the last ``####``."""
    solution, found, _ = cell.rpartition("####") if isinstance(cell, str) else ("", "", "")
    return solution.strip() or None if found else None
