"""A table of rewards of each shard of a round's rollouts, made and not written: by the run's process or a worker."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import pyarrow as pa

from grpo_core.artifacts import read_parquet
from grpo_core.labels.corrections import Corrections, corrected, corrections
from grpo_core.prompts.rewards import source_rewards
from grpo_core.rewards import smoothing
from grpo_core.rewards.by_source import by_source
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.score import Reward, build_reward, needs_reference
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict
from grpo_core.schemas import REWARDS, ROLLOUTS
from tasks.pools import training_prompts
from tasks.round_labels import scoring_labels
from tasks.run import Run, round_folder

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


def is_sound(table: pa.Table, share: float) -> bool:
    """Whether no more than this share of a shard's checks have failed."""
    return len(failed_checks(table)) <= share * float(table.num_rows)


def failed_checks(table: pa.Table) -> list[str]:
    """The checks that gave no finding, in words."""
    return [
        f"{verdict}: {detail}" if detail else verdict
        for verdict, detail in zip(table["verdict"].to_pylist(), table["detail"].to_pylist(), strict=True)
        if not Verdict(verdict).is_finding
    ]


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
