"""The pools of training prompts: those that the run began with, and those of sources that joined it later."""

import pyarrow as pa

from grpo_core.artifacts import read_parquet
from grpo_core.fingerprint import digest_json
from grpo_core.prompts.config import DataConfig, SourceConfig
from grpo_core.schemas import PROMPTS
from tasks.run import Run
from tasks.stage import input_digest, input_manifest

FIRST_POOL = "prompts"


def pool_folder(first_round: int) -> str:
    """Where the prompts lie that may be taken from a round on: ``prompts``, ``prompts-0007``, …"""
    return FIRST_POOL if first_round <= 1 else f"{FIRST_POOL}-{first_round:04d}"


def sources_from(config: DataConfig, first_round: int) -> list[SourceConfig]:
    """The sources whose prompts may be taken from exactly this round on."""
    return [source for source in config.mix if (source.from_round or 1) == max(first_round, 1)]


def training_sources_at(config: DataConfig, round_number: int) -> DataConfig:
    """The section as it is for a round's rollouts: without what is held out and the sources that join later."""
    return config.model_copy(update={"sources": _there(config, round_number), "eval_sources": []})


def held_out_sources(config: DataConfig) -> DataConfig:
    """The section as it is for an evaluation: a part of the first pool is held out, too."""
    return config.model_copy(update={"sources": _there(config, 1)})


def _there(config: DataConfig, round_number: int) -> list[SourceConfig]:
    return [source for source in config.sources if (source.from_round or 1) <= max(round_number, 1)]


def joining_rounds(config: DataConfig) -> list[int]:
    """The rounds from which each pool may be taken, the first one's 1 included, in order."""
    return sorted({source.from_round or 1 for source in config.mix})


def pools(config: DataConfig, round_number: int) -> list[str]:
    """Folders of the pools that a round may take from, the oldest first."""
    return [pool_folder(first) for first in joining_rounds(config) if first <= max(round_number, 1)]


def pools_digest(run: Run, round_number: int) -> str:
    """The identity of all prompts that a round may take, and of those held out. Raises InputMissing."""
    digests = [input_digest(run, folder) for folder in pools(run.config.data, round_number)]
    return digests[0] if len(digests) == 1 else digest_json(digests)


def training_count(run: Run, round_number: int) -> int:
    """How many training prompts a round may take, by the manifests. Raises InputMissing."""
    return sum(int(input_manifest(run, folder).metrics["train"]) for folder in pools(run.config.data, round_number))


def training_prompts(run: Run, round_number: int, columns: list[str] | None = None) -> pa.Table:
    """The training prompts that a round may take, in rows of ``schemas.PROMPTS`` or some columns of it."""
    schema = PROMPTS if columns is None else pa.schema([PROMPTS.field(name) for name in columns])
    tables = [
        read_parquet(run.store, f"{folder}/train.parquet", schema) for folder in pools(run.config.data, round_number)
    ]
    return pa.concat_tables(tables)
