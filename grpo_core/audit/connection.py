"""DuckDB over a run's files, as views; nothing is copied, and only the columns that a question names are read.

The connection can read these files and nothing else, and write nowhere: its settings are locked once the views stand.
"""

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from grpo_core.audit.files import SCHEMAS, RunFiles, find_files
from grpo_core.errors import UserError
from grpo_core.storage import Store

_AUDIT = """
CREATE VIEW audit AS
SELECT r.rollout_id, r.round, r.prompt_id, r.sample_index, p.prompt, p.source, p.source_row,
       coalesce(w.gold, p.gold) AS gold, r.text, w.verdict, w.extracted, w.reward, w.components,
       a.advantage, a.in_loss, a.zero_variance, r.finish_reason, len(r.completion_ids) AS tokens, w.detail
FROM rollouts r
LEFT JOIN rewards w ON w.rollout_id = r.rollout_id
LEFT JOIN advantages a ON a.rollout_id = r.rollout_id
LEFT JOIN (SELECT DISTINCT ON (prompt_id) * FROM prompts ORDER BY pool) p ON p.prompt_id = r.prompt_id
"""

_AUDIT_READS = ("rollouts", "rewards", "advantages", "prompts")

_SETTINGS = (
    # An extension would be fetched from the network in the middle of a question.
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "temp_directory = ''",
    "parquet_metadata_cache = true",
)
_SQL_TYPES = {
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint64": "UBIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
}
_UNREADABLE = (duckdb.IOException, duckdb.InvalidInputException, pa.ArrowException, OSError)
_LOCKED = ("enable_external_access = false", "python_enable_replacements = false", "lock_configuration = true")


class Audit:
    """A run to ask. Close it, or use it in ``with``.

    Args:
        rounds: only files of these rounds are looked at; None: all.
        files: in place of what lies in the run, when that is known already.

    Raises:
        UserError: the folder holds no run.
    """

    def __init__(self, store: Store, rounds: Container[int] | None = None, files: RunFiles | None = None) -> None:
        self.store = store
        self.files = find_files(store, rounds) if files is None else files
        self._views: set[str] = set()
        self._is_locked = False
        self._connection = duckdb.connect(":memory:")
        for setting in _SETTINGS:
            self._connection.execute(f"SET {setting}")
        if not store.is_local:
            self._connection.register_filesystem(store.fs)

    def __enter__(self) -> "Audit":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def notes(self) -> list[str]:
        """What of the run isn't shown, in sentences."""
        return self.files.notes

    def ask(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of one of the house's own questions; makes the views whose names stand in it.

        Raises:
            UserError: a file is gone or can't be read.
        """
        try:
            self._see(sql)
            answer = self._connection.execute(sql, dict(parameters or {}))
            names = [column[0] for column in answer.description or []]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def ask_sql(self, sql: str, limit: int | None) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Columns and rows of a user's question; one row more than ``limit`` where there are more.

        The connection then reads files of the run only, for good, and nothing can be written.

        Raises:
            UserError: it isn't one statement that only reads, or DuckDB refuses it.
        """
        try:
            self._see(sql)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        self._lock()
        try:
            statements = self._connection.extract_statements(sql)
            # Not even EXPLAIN: it may run what it explains.
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise UserError("--sql takes one statement that reads, such as: select verdict, count(*) from audit …")
            answer = self._connection.execute(statements[0])
            names = [column[0] for column in answer.description or []]
            return names, answer.fetchall() if limit is None else answer.fetchmany(limit + 1)
        except duckdb.Error as error:
            raise UserError(f"--sql: {_one_sentence(error)}") from error

    def _unreadable(self, error: Exception) -> UserError:
        return UserError(
            f"A table of '{self.store.uri}' can't be read ({str(error).splitlines()[0]}); which files are harmed says: "
            f"grpo-rounds audit verify {self.store.uri}"
        )

    def _lock(self) -> None:
        if not self._is_locked:
            for setting in (f"allowed_directories = [{_quoted(self._url('').rstrip('/') + '/')}]", *_LOCKED):
                self._connection.execute(f"SET {setting}")
            self._is_locked = True

    def _see(self, sql: str) -> None:
        """Make the views that a statement may mean: each costs a look into its files."""
        words = set(re.findall(r"\w+", sql.lower()))
        named = [name for name in SCHEMAS if name in words]
        if "audit" in words:
            named += _AUDIT_READS
        if not named:  # it may ask what there is
            named = list(SCHEMAS)
        for name in named:
            self._create(name)
        if "audit" not in self._views and self._views.issuperset(_AUDIT_READS):
            self._connection.execute(_AUDIT)
            self._views.add("audit")

    def _create(self, name: str) -> None:
        """A view of one table; artifacts with other columns than the rest are joined by the columns' names."""
        if name in self._views:
            return
        self._views.add(name)
        known = {field.name: _sql_type(field.type) for field in SCHEMAS[name] if field.name != "round"}
        by_columns: dict[tuple[str, ...], list[str]] = {}
        for files in self.files.tables[name]:
            by_columns.setdefault(self._columns(files[0]), []).extend(files)
        parts = [
            f"SELECT *{_missing(columns, known)}{self._from_name(name, columns)} FROM read_parquet({self._list(files)})"
            for columns, files in by_columns.items()
        ]
        if not parts:
            nulls = _missing((), known).removeprefix(", ")
            parts = [f"SELECT {nulls}{self._from_name(name, tuple(known), empty=True)} WHERE false"]
        self._connection.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(parts)}")

    def _columns(self, file: str) -> tuple[str, ...]:
        if self.store.is_local:
            return tuple(pq.read_schema(self.store.path(file)).names)
        with self.store.fs.open(self.store.path(file), "rb") as stream:
            return tuple(pq.read_schema(stream).names)

    def _from_name(self, table: str, columns: Sequence[str], empty: bool = False) -> str:
        """``file``, relative to the run, and what else only a file's place tells: the round, or a prompt's pool."""
        file = "NULL::VARCHAR" if empty else f"substr(filename, {len(self._url('').rstrip('/')) + 2})"
        added = f", {file} AS file"
        if table in ("prompts", "held_out", "rejected"):
            return added + f", regexp_extract({file}, '^[^/]+') AS pool"
        return added if "round" in columns else added + f", regexp_extract({file}, '[0-9]+')::INTEGER AS round"

    def _list(self, files: Sequence[str]) -> str:
        return "[" + ", ".join(_quoted(self._url(file)) for file in files) + "]"

    def _url(self, file: str) -> str:
        path = self.store.path(file)
        return path if self.store.is_local else str(self.store.fs.unstrip_protocol(path))


def _missing(columns: Sequence[str], known: Mapping[str, str]) -> str:
    """The columns of the schema that these files leave out, as nulls."""
    return "".join(f", NULL::{kind} AS {name}" for name, kind in known.items() if name not in columns)


def _sql_type(kind: pa.DataType) -> str:
    """DuckDB's name of an Arrow type."""
    if pa.types.is_list(kind):
        return f"{_sql_type(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({_sql_type(kind.key_type)}, {_sql_type(kind.item_type)})"
    return _SQL_TYPES[str(kind)]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _one_sentence(error: duckdb.Error) -> str:
    """DuckDB's complaint without its picture of the place, and with the guess that it often makes."""
    lines = [line.strip() for line in str(error).splitlines()]
    end = next((n for n, line in enumerate(lines) if line.startswith("LINE ")), len(lines))
    said = " ".join(line for line in lines[:end] if line)
    return f"{said.rstrip('.')}; tables: {', '.join(['audit', *SCHEMAS])}."
