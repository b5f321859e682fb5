"""Sources that join a run: from which round on their prompts may be taken, so that no planned round changes."""

from collections.abc import Mapping
from typing import Any

from grpo_core.prompts.config import DataConfig, SourceConfig


def with_joining_rounds(data: DataConfig, before: DataConfig, next_round: int) -> DataConfig:
    """The section with ``from_round`` filled in for its new sources.

    A source that the run has already, by its label or by what it reads, keeps its round, however its other keys have
    changed; a new one gets ``next_round`` unless it names a round itself. Where no source of the first round is left,
    nothing of the run can stay as it was, and the new ones count from the start.

    Args:
        before: the run's section so far.
        next_round: the first round that is not planned yet; 1: nothing is, and there is nothing to disturb.
    """
    known = {_rows_of(source): source.from_round for source in before.mix}
    known |= {source.label: source.from_round for source in before.mix}
    joins = next_round if next_round > 1 else None
    placed = [_placed(source, known, joins) for source in data.sources]
    if all((source.from_round or 1) > 1 for source in placed):
        placed = [_placed(source, known, None) for source in data.sources]
    return data.model_copy(update={"sources": placed})


def _placed(source: SourceConfig, known: Mapping[str, int | None], joins: int | None) -> SourceConfig:
    if source.from_round is not None:
        return source
    place = known.get(source.label, known.get(_rows_of(source), joins))
    return source.model_copy(update={"from_round": place})


def content_of(source: SourceConfig) -> Mapping[str, Any]:
    """The keys of a source that decide its rows, as plain values for a fingerprint."""
    return source.model_dump(mode="json", exclude={"weight", "from_round"}) | {"name": source.label}


def _rows_of(source: SourceConfig) -> str:
    """What tells a source that was renamed from another one."""
    return repr(sorted({**content_of(source), "name": None}.items()))
