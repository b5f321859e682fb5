"""A round's rollouts scored by a reward, shard by shard: what the stages and ``rescore`` have in common."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grpo_core import interrupt
from grpo_core.artifacts import ArtifactWriter, read_parquet
from grpo_core.diagnostics import length_by_verdict, reward_metrics
from grpo_core.errors import UserError
from grpo_core.labels.corrections import Corrections
from grpo_core.rewards import monitor, smoothing
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.verdict import Verdict
from grpo_core.schemas import REWARDS, ROLLOUTS, Progress, no_progress
from tasks.cluster import is_on_cluster
from tasks.cluster_scores import score_on_cluster
from tasks.reward_tables import Tables, failed_checks, is_sound, open_tables
from tasks.run import Run, round_folder
from tasks.stage import input_manifest

MONITOR = "monitor.json"  # beside the tables: what of the monitor's finds is no number


def score_round(
    run: Run,
    round_number: int,
    config: RewardConfig,
    writer: ArtifactWriter,
    past: smoothing.State,
    progress: Progress,
    made: Mapping[str, pa.Table] = MappingProxyType({}),
) -> Mapping[str, float]:
    """Leave a table of rewards for each shard of a round's finished rollouts, and what ``Scorer.finish`` adds.

    Args:
        past: the state of smoothing after the round before.
        made: tables of shards that are scored already and not yet written.

    Returns:
        The round's metrics.

    Raises:
        UserError: the check of more rollouts than ``config.max_unchecked`` allows has failed.
    """
    source = run.artifact(round_folder(round_number, "rollouts"))
    shards, rollouts = source.tables(), input_manifest(run, source.folder).rows
    with open_scorer(run, round_number, config, writer, past, rollouts) as scorer:
        scorer.take(made)
        scorer.score_ahead(shards, progress)
        for number, name in enumerate(shards):
            scorer.score(name)
            progress(number + 1, len(shards))
            interrupt.safe_point()
        return scorer.finish()


class Scorer:
    """Scores shards of a round's rollouts, each into a table of rewards of the same name."""

    def __init__(
        self,
        run: Run,
        round_number: int,
        config: RewardConfig,
        writer: ArtifactWriter,
        past: smoothing.State,
        rollouts: int,
        tables: Tables,
    ) -> None:
        self._run = run
        self._round = round_number
        self._config = config
        self._writer = writer
        self._past = past
        self._tables = tables
        self._source = run.artifact(round_folder(round_number, "rollouts"))
        self._said = tables.said
        self._limit = _Limit(config.max_unchecked, rollouts, round_number)
        self._completions: list[Sequence[int]] = []
        self._made: dict[str, pa.Table] = {}  # and not written
        self._doubtful: dict[str, pa.Table] = {}

    def take(self, made: Mapping[str, pa.Table]) -> None:
        """Take tables of shards that ``score`` is going to be asked for."""
        self._made |= made

    def score_ahead(self, names: Sequence[str], progress: Progress = no_progress) -> None:
        """Where the run has a cluster, have its workers score what is not there yet; ``score`` then finds it."""
        missing = [name for name in names if not self._writer.has(name)]
        if not missing or not is_on_cluster(self._run, self._writer):
            return

        def look() -> None:
            self._writer.take_up_marked(missing)
            progress(sum(map(self._writer.has, names)), len(names))

        self._made |= score_on_cluster(self._run, self._round, self._config, self._past, self._writer, missing, look)

    def score(self, name: str) -> pa.Table:
        """The rewards of one shard, written unless they are there already.

        Raises:
            UserError: by now too many checks of the round have failed.
        """
        if self._writer.has(name):
            rollouts = self._tables.rollouts(name)
            table = read_parquet(self._writer.store, self._writer.artifact.file(name), REWARDS)
            self._limit.add(table)
        elif name in self._made:
            rollouts, table = self._tables.rollouts(name), self._made.pop(name)
            self._keep(name, table)
        else:
            rollouts, table = self._tables.make(name)
            self._keep(name, table)
        self._completions += [row["completion_ids"] for row in rollouts]
        return table

    def _keep(self, name: str, table: pa.Table) -> None:
        if self._limit.add(table):
            self._writer.write_table(name, table)
        else:  # written once the round has passed: if it stops the run, it must be scored again
            self._doubtful[name] = table

    def finish(self) -> Mapping[str, float]:
        """Leave the state of smoothing and what the monitor found beside the tables; the round's metrics."""
        for name, table in self._doubtful.items():
            self._writer.write_table(name, table)
        rewards, config = self._writer.artifact.read_table(REWARDS), self._config
        common = [[answer, share] for answer, share in monitor.common_answers(rewards["extracted"].to_pylist())]
        files = {MONITOR: (json.dumps({"common_answers": common}, indent=1, ensure_ascii=False) + "\n").encode()}
        if config.smoothing:
            state = smoothing.advance(self._past, component_values(rewards, config), config.smoothing)
            files[smoothing.FILE] = smoothing.to_bytes(state)
        self._writer.write_folder(lambda folder: _write_all(folder, files))
        rollouts = self._source.read_table(ROLLOUTS)
        lengths = length_by_verdict(rollouts, rewards)
        people = _people_metrics(rollouts, rewards, self._said) if self._said else {}
        return reward_metrics(rewards) | lengths | _monitor_metrics(rewards, self._completions, config) | people


@contextmanager
def open_scorer(
    run: Run, round_number: int, config: RewardConfig, writer: ArtifactWriter, past: smoothing.State, rollouts: int
) -> Iterator[Scorer]:
    """A scorer whose models are freed afterwards.

    Args:
        rollouts: how many the round has at least; the share of failed checks is counted against it.
    """
    with open_tables(run, round_number, config, past) as tables:
        yield Scorer(run, round_number, config, writer, past, rollouts, tables)


def component_values(rewards: pa.Table, config: RewardConfig) -> dict[str, "np.ndarray[Any, np.dtype[np.float64]]"]:
    """Each component's raw values in a table of rewards, NaN where masked."""
    rows = [dict(row) for row in rewards["components"].to_pylist()]
    return {
        name: np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64)
        for name in config.components
    }


class _Limit:
    """Counts failed checks as shards come in, and stops a round in which they are too many."""

    def __init__(self, share: float, rollouts: int, round_number: int) -> None:
        self._share = share
        self._rollouts = rollouts
        self._round = round_number
        self._seen = 0
        self._details: Counter[str] = Counter()

    def add(self, table: pa.Table) -> bool:
        """Whether this shard alone is within the limit. Raises UserError as soon as the round can't be."""
        failed = failed_checks(table)
        self._seen += table.num_rows
        self._details.update(failed)
        unchecked = self._details.total()
        if unchecked > self._share * self._rollouts:
            (common, _), *_ = self._details.most_common(1)
            raise UserError(
                f"Round {self._round}: {unchecked} of {self._seen} rollouts could not be checked, most often for "
                f"'{common}', which is over reward.max_unchecked ({self._share:g}); mend the check and give the same "
                "command again, finished work is kept."
            )
        return is_sound(table, self._share)


def _people_metrics(rollouts: pa.Table, rewards: pa.Table, said: Corrections) -> dict[str, float]:
    """Rollouts that a person's verdict or gold speaks of, and on how many answers and prompts people disagree."""
    texts = dict(zip(rollouts["rollout_id"].to_pylist(), rollouts["text"].to_pylist(), strict=True))
    rows = rewards.select(["rollout_id", "prompt_id", "extracted"]).to_pylist()
    verdicts = sum(
        said.verdict_on(row["prompt_id"], row["extracted"], texts[row["rollout_id"]]) is not None for row in rows
    )
    golds = sum(row["prompt_id"] in said.golds for row in rows)
    return {
        "people_verdicts": float(verdicts), "people_golds": float(golds), "people_conflicts": float(said.conflicts)
    }  # fmt: skip


def _monitor_metrics(rewards: pa.Table, completions: Sequence[Sequence[int]], config: RewardConfig) -> dict[str, float]:
    extracted = rewards["extracted"].to_pylist()
    metrics = {"near_duplicate_share": monitor.near_duplicate_share(completions)}
    if common := monitor.common_answers(extracted, top=1):
        metrics["top_answer_share"] = common[0][1]
        metrics["distinct_answers"] = float(len(set(extracted) - {None}))
    share = monitor.format_alone_share(
        [dict(row) for row in rewards["components"].to_pylist()],
        pc.equal(rewards["verdict"], Verdict.OK.value).to_pylist(),
        *_format_weights(config),
    )
    return metrics if share is None else metrics | {"format_alone_share": share}


def _format_weights(config: RewardConfig) -> tuple[dict[str, float], list[str]]:
    """Weights of the components of a table, and which of them pay for form."""
    if config.components:
        weights = {name: part.weight for name, part in config.components.items()}
        return weights, [name for name, part in config.components.items() if part.reward == "format"]
    return ({"correct": 1.0, "box": 1.0}, ["box"]) if config.name == "math" else ({}, [])


def _write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)
