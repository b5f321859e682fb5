"""What a verification found: every difference by name, what was checked, and what was left out."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from grpo_core.storage import FileRecord

# A sum may come out another way on another processor; a digest that differs is told exactly.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it should be.

    Attributes:
        where: the artifact, as a path in the run folder, or ``MLflow`` with the name of its run.
        what: in words; equal for differences of one kind.
        row: the rollout's id, or the key of another row; empty where the whole artifact is meant.
        column: the column, file or metric.
        stored: what the artifact says; what lies on disk where MLflow is compared.
        found: what was computed, or what the other side says.
    """

    where: str
    what: str
    row: str = ""
    column: str = ""
    stored: Any = None
    found: Any = None


@dataclass(slots=True)
class Report:
    """The outcome of ``verify_run``.

    Attributes:
        checked: how many of what were compared, by name.
        skipped: what was not looked at and why, in sentences.
        unfinished: artifacts that the run has yet to finish.
        records: digests of the run's files as they lie there, by path.
    """

    run: str
    rounds: list[int]
    checked: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    records: dict[str, FileRecord] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not self.differences

    def add(self, where: str, what: str, **more: Any) -> None:
        self.differences.append(Difference(where, what, **more))

    def skip(self, why: str) -> None:
        if why not in self.skipped:
            self.skipped.append(why)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything, every difference."""
        return {
            "run": self.run,
            "rounds": self.rounds,
            "clean": self.clean,
            "checked": dict(sorted(self.checked.items())),
            "differences": [asdict(found) for found in self.differences],
            "skipped": self.skipped,
            "unfinished": self.unfinished,
        }


def equal(one: Any, other: Any) -> bool:
    """Equal values; floats to 1e-9 of their size, and what is no number equals itself."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def compare_tables(report: Report, where: str, key: str, stored: pa.Table, found: pa.Table, what: str) -> None:
    """Name each cell of ``stored`` that ``found``, the table computed again, has otherwise; rows by their ``key``."""
    before = {row[key]: row for row in stored.to_pylist()}
    after = {row[key]: row for row in found.to_pylist()}
    for name in sorted(before.keys() | after.keys(), key=str):
        if name not in after:
            report.add(where, "a row too many", row=str(name))
        elif name not in before:
            report.add(where, "a row is missing", row=str(name))
        else:
            old, new = before[name], after[name]
            for column in dict.fromkeys((*old, *new)):
                if not equal(_plain(old.get(column)), _plain(new.get(column))):
                    report.add(
                        where, what, row=str(name), column=column, stored=_plain(old.get(column)),
                        found=_plain(new.get(column)),
                    )  # fmt: skip


def compare_metrics(report: Report, where: str, stored: Mapping[str, float], found: Mapping[str, float]) -> None:
    """Name each of a manifest's metrics that the same rows don't give again."""
    report.checked["metrics"] += len(stored)
    for name in sorted(stored.keys() | found.keys()):
        old, new = stored.get(name), found.get(name)
        if old is None or new is None or not equal(float(old), float(new)):
            report.add(
                where, "a metric in the manifest is another one computed again", column=name, stored=old, found=new
            )


def _plain(value: Any) -> Any:
    """Components, which Arrow gives as pairs, as a mapping."""
    is_pairs = isinstance(value, list) and bool(value) and all(isinstance(v, tuple) and len(v) == 2 for v in value)
    return dict(value) if is_pairs else value
