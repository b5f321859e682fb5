"""A round's rollouts scored by a reward, shard by shard: what the stages and ``rescore`` have in common."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grpo_core import interrupt
from grpo_core.artifacts import ArtifactWriter, read_parquet
from grpo_core.diagnostics import length_by_verdict, reward_metrics
from grpo_core.errors import UserError
from grpo_core.labels.corrections import Corrections, corrected, corrections
from grpo_core.prompts.rewards import source_rewards
from grpo_core.rewards import monitor, smoothing
from grpo_core.rewards.by_source import by_source
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.score import Reward, build_reward, needs_reference
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict
from grpo_core.schemas import REWARDS, ROLLOUTS, Progress, no_progress
from tasks.cluster import is_on_cluster
from tasks.cluster_scores import score_on_cluster
from tasks.pools import training_prompts
from tasks.round_labels import scoring_labels
from tasks.run import Run, round_folder
from tasks.stage import input_manifest

MONITOR = "monitor.json"  # beside the tables: what of the monitor's finds is no number

Correct = Callable[[RewardFunction, RewardConfig], RewardFunction]


@contextmanager
def open_reward(
    run: Run, config: RewardConfig, past: smoothing.State | None = None, correct: Correct | None = None
) -> Iterator[Reward]:
    """The run's reward, and those of its sources, with the run's starting policy at hand where one asks for that.

    Their models are freed afterwards.

    Args:
        correct: wraps the function of a reward that gives the verdict.
    """
    others = source_rewards(run.config.data, config)
    with ExitStack() as stack:
        asked = any(needs_reference(reward) for reward in (config, *others.values()))
        reference = stack.enter_context(run.local_policy(0)) if asked else None

        def build(reward: RewardConfig, past: smoothing.State | None = None) -> Reward:
            wrap = None if correct is None else lambda function: correct(function, reward)
            return build_reward(reward, reference=reference, past=past, correct=wrap)

        built = {label: (reward.name, build(reward)) for label, reward in others.items()}
        yield stack.enter_context(by_source(build(config, past), built))


def score_round(
    run: Run,
    round_number: int,
    config: RewardConfig,
    writer: ArtifactWriter,
    past: smoothing.State,
    progress: Progress,
) -> Mapping[str, float]:
    """Leave a table of rewards for each shard of a round's finished rollouts, and what ``Scorer.finish`` adds.

    Args:
        past: the state of smoothing after the round before.

    Returns:
        The round's metrics.

    Raises:
        UserError: the check of more rollouts than ``config.max_unchecked`` allows has failed.
    """
    source = run.artifact(round_folder(round_number, "rollouts"))
    shards, rollouts = source.tables(), input_manifest(run, source.folder).rows
    with open_scorer(run, round_number, config, writer, past, rollouts) as scorer:
        scorer.score_ahead(shards, progress)
        for number, name in enumerate(shards):
            scorer.score(name)
            progress(number + 1, len(shards))
            interrupt.safe_point()
        return scorer.finish()


class Tables:
    """Makes a table of rewards of each shard of a round's rollouts; the reward is opened for the first.

    What people said of these prompts by the time the round began counts, as the config's section ``labels`` has it.
    """

    def __init__(
        self, run: Run, round_number: int, config: RewardConfig, past: smoothing.State, held: ExitStack
    ) -> None:
        self._source = run.artifact(round_folder(round_number, "rollouts"))
        self._prompts = _prompts(run, round_number)
        self.said = corrections(scoring_labels(run, round_number))
        golds_before = _correct_golds(self._prompts, self.said)

        def correct(function: RewardFunction, reward: RewardConfig) -> RewardFunction:
            return corrected(function, self.said, golds_before, reward, run.config.labels)

        self._open: Callable[[], Reward] = lambda: held.enter_context(
            open_reward(run, config, past, correct if self.said else None)
        )

    @cached_property
    def _reward(self) -> Reward:
        return self._open()

    def rollouts(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_parquet(self._source.store, self._source.file(name), ROLLOUTS).to_pylist()
        return rows

    def make(self, name: str) -> tuple[list[dict[str, Any]], pa.Table]:
        """The rollouts of a shard and their rewards."""
        rollouts = self.rollouts(name)
        samples = [_sample(row, self._prompts[row["prompt_id"]]) for row in rollouts]
        return rollouts, _table(rollouts, samples, self._reward(samples))


@contextmanager
def open_tables(run: Run, round_number: int, config: RewardConfig, past: smoothing.State) -> Iterator[Tables]:
    """Tables whose models are freed afterwards."""
    with ExitStack() as held:
        yield Tables(run, round_number, config, past, held)


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
        self._from_workers: dict[str, pa.Table] = {}
        self._doubtful: dict[str, pa.Table] = {}

    def score_ahead(self, names: Sequence[str], progress: Progress = no_progress) -> None:
        """Where the run has a cluster, have its workers score what is not there yet; ``score`` then finds it."""
        missing = [name for name in names if not self._writer.has(name)]
        if not missing or not is_on_cluster(self._run, self._writer):
            return

        def look() -> None:
            self._writer.take_up_marked(missing)
            progress(sum(map(self._writer.has, names)), len(names))

        self._from_workers |= score_on_cluster(
            self._run, self._round, self._config, self._past, self._writer, missing, look
        )

    def score(self, name: str) -> pa.Table:
        """The rewards of one shard, written unless they are there already.

        Raises:
            UserError: by now too many checks of the round have failed.
        """
        if self._writer.has(name):
            rollouts = self._tables.rollouts(name)
            table = read_parquet(self._writer.store, self._writer.artifact.file(name), REWARDS)
            self._limit.add(table)
        elif name in self._from_workers:
            rollouts, table = self._tables.rollouts(name), self._from_workers.pop(name)
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


def is_sound(table: pa.Table, share: float) -> bool:
    """Whether no more than this share of a shard's checks have failed."""
    return len(_failed(table)) <= share * float(table.num_rows)


def _failed(table: pa.Table) -> list[str]:
    """The checks that gave no finding, in words."""
    return [
        f"{verdict}: {detail}" if detail else verdict
        for verdict, detail in zip(table["verdict"].to_pylist(), table["detail"].to_pylist(), strict=True)
        if not Verdict(verdict).is_finding
    ]


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
        failed = _failed(table)
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


def _prompts(run: Run, round_number: int) -> dict[str, dict[str, Any]]:
    train = training_prompts(run, round_number, ["prompt_id", "source", "prompt", "gold", "extra"])
    return {row["prompt_id"]: row for row in train.to_pylist()}


def _correct_golds(prompts: dict[str, dict[str, Any]], said: Corrections) -> dict[str, str]:
    """Put people's golds in the place of the data's; what stood there, by prompt, where it was another."""
    before: dict[str, str] = {}
    for prompt_id, label in said.golds.items():
        row = prompts.get(prompt_id)
        if row is not None and row["gold"] != label.value:
            before[prompt_id], row["gold"] = row["gold"], label.value
    return before


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


def _sample(row: Mapping[str, Any], prompt: Mapping[str, Any]) -> Sample:
    return Sample(
        id=row["rollout_id"],
        response=row["text"],
        gold=prompt["gold"],
        prompt=prompt["prompt"],
        finish_reason=row["finish_reason"],
        extra=json.loads(prompt["extra"] or "{}"),
        group=f"{row['round']}/{row['prompt_id']}",
        completion_tokens=len(row["completion_ids"]),
        max_new_tokens=row["max_new_tokens"],
        prompt_ids=row["prompt_ids"],
        completion_ids=row["completion_ids"],
        source=prompt["source"],
    )


def _table(rollouts: Sequence[Mapping[str, Any]], samples: Sequence[Sample], scores: Sequence[Score]) -> pa.Table:
    rows = [
        {key: row[key] for key in ("rollout_id", "round", "prompt_id", "sample_index")}
        | {
            "verdict": score.verdict.value,
            "extracted": score.extracted,
            "gold": sample.gold,
            "components": sorted(score.components.items()),
            "reward": score.reward,
            "detail": score.detail,
        }
        for row, sample, score in zip(rollouts, samples, scores, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=REWARDS)


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
