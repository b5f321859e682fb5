"""Sources that join a run: from which round on their prompts may be taken, so that no planned round changes."""

from collections.abc import Mapping
from typing import Any

from grpo_core.prompts.config import DataConfig, SourceConfig


def with_joining_rounds(data: DataConfig, before: DataConfig, next_round: int) -> DataConfig:
    """The section with ``from_round`` filled in for its new sources.

    A source that the run has already keeps its round; a new one gets ``next_round`` unless it names a round itself.

    Args:
        before: the run's section so far.
        next_round: the first round that is not planned yet; 1: nothing is, and there is nothing to disturb.
    """
    known = {_key(source): source.from_round for source in before.mix}
    return data.model_copy(update={"sources": [_placed(source, known, next_round) for source in data.sources]})


def _placed(source: SourceConfig, known: Mapping[str, int | None], next_round: int) -> SourceConfig:
    if source.from_round is not None:
        return source
    place = known.get(_key(source), next_round if next_round > 1 else None)
    return source.model_copy(update={"from_round": place})


def content_of(source: SourceConfig) -> Mapping[str, Any]:
    """The keys of a source that decide its rows, as plain values for a fingerprint."""
    return source.model_dump(mode="json", exclude={"weight", "from_round"}) | {"name": source.label}


def _key(source: SourceConfig) -> str:
    return repr(sorted(content_of(source).items()))
