"""Work done once more from the stored rows, into a scratch folder, and compared with what the run holds."""

import json
import tempfile
from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from grpo_core.artifacts import Artifact, ArtifactWriter, read_parquet
from grpo_core.errors import UserError
from grpo_core.evaluation import evaluate
from grpo_core.fingerprint import Fingerprint
from grpo_core.generation.engine import Completion, Engine, Request, SamplingParams
from grpo_core.rewards.config import ComponentConfig, RewardConfig
from grpo_core.rewards.reward import Reward
from grpo_core.schemas import ADVANTAGES, DIFFICULTY, EVALUATION, PLAN, PROMPTS, REWARDS, Progress, no_progress
from grpo_core.storage import Store
from tasks import compute_advantages, filter_prompts, plan_round, score_rewards, track_difficulty
from tasks.run import Run, round_folder
from tasks.stage import PerArtifact, Stage
from tasks.verify_report import Report, compare_metrics, compare_tables, equal

_UNSURE = ("judge", "reward_model", "logprob")  # they cost money or a GPU, and may say something else the next time
_FAILURES = (UserError, LookupError, ValueError, TypeError, AssertionError, OSError, pa.ArrowException)

_NO_KEY = Fingerprint("verify", 0, 1, {}, {})  # of a scratch artifact, which nobody resumes

# Stage -> the schema of its table and the column that names a row.
_AGAIN = (
    (plan_round.STAGE, PLAN, "position"),
    (score_rewards.STAGE, REWARDS, "rollout_id"),
    (track_difficulty.STAGE, DIFFICULTY, "prompt_id"),
    (compute_advantages.STAGE, ADVANTAGES, "rollout_id"),
)


def unsure_rewards(config: RewardConfig) -> list[str]:
    """The parts of a reward that are recomputed on request only."""
    parts = config.components.values()
    return sorted({name for name in ([p.reward for p in parts] or [config.name]) if name in _UNSURE})


def recompute(report: Report, run: Run, number: int, stages: Sequence[Stage], rewards: bool) -> None:
    """Plan, rewards and advantages of a round once more, by the stages' own work.

    Args:
        rewards: False leaves the rewards out.
    """
    made = {place for stage in stages for place in stage.folders(number).values()}
    for stage, schema, key in _AGAIN:
        ((name, folder),) = stage.folders(number).items()
        # Another stage may leave the same artifact, by the same work.
        if folder not in made or run.artifact(folder).manifest() is None:
            continue
        if stage is score_rewards.STAGE and not rewards:
            continue
        try:
            _compare(report, run, number, stage, name, schema, key)
        except _FAILURES as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            report.add(folder, f"it can't be computed again: {said}")


def _compare(report: Report, run: Run, number: int, stage: Stage, name: str, schema: pa.Schema, key: str) -> None:
    folder = stage.folders(number)[name]
    stored = run.artifact(folder)
    manifest = stored.manifest()
    assert manifest is not None
    with tempfile.TemporaryDirectory() as scratch:
        writer = ArtifactWriter(Artifact(Store(scratch), folder), _NO_KEY)
        metrics = stage.compute(run, number, {name: writer}, no_progress)
        assert not isinstance(metrics, PerArtifact), stage.name
        report.checked[f"{stored.prefix.rstrip('.') or name} computed again"] += sum(writer.rows.values())
        different = [
            file
            for file in sorted({*manifest.files, *writer.files})
            if report.records.get(stored.file(file)) != writer.files.get(file)
        ]
        if any(file.endswith(".parquet") for file in different):
            compare_tables(
                report, folder, key, _table(stored, schema), _table(writer.artifact, schema),
                "computed again it is another one",
            )  # fmt: skip
        for file in different:
            if not file.endswith(".parquet"):
                _compare_json(report, stored, writer.artifact, file)
        compare_metrics(report, folder, manifest.metrics, metrics)


def recompute_sure(report: Report, run: Run, number: int) -> None:
    """Where a judge or a model is not asked again: the other components once more, and the sum of all of them."""
    place, config = round_folder(number, "rewards"), run.config.reward
    sure = {name: part for name, part in config.components.items() if part.reward not in _UNSURE}
    if not config.components or run.artifact(place).manifest() is None:
        return
    try:
        stored = {row["rollout_id"]: row for row in _table(run.artifact(place), REWARDS).to_pylist()}
        again = _scored_by(run, number, config, sure) if sure else {}
    except _FAILURES as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        report.add(place, f"it can't be computed again: {said}")
        return
    report.checked["rewards computed again in part"] += len(again)
    for key, row in stored.items():
        values = dict(row["components"])
        found = dict(again[key]["components"]) if key in again else {}
        for name in found:
            if not equal(values.get(name), found[name]):
                report.add(
                    place, "computed again it is another one", row=key, column=f"components.{name}",
                    stored=values.get(name), found=found[name],
                )  # fmt: skip
        if config.combine == "sum" and not config.smoothing and row["reward"] is not None:
            total = sum(part.weight * (values.get(name) or 0.0) for name, part in config.components.items())
            if not equal(row["reward"], float(total)):
                report.add(
                    place, "it is not the weighted sum of its components", row=key, column="reward",
                    stored=row["reward"], found=total,
                )  # fmt: skip


def _scored_by(
    run: Run, number: int, config: RewardConfig, components: dict[str, ComponentConfig]
) -> dict[str, dict[str, Any]]:
    """The round's rewards by some components alone, by rollout."""
    reward = config.model_copy(
        update={"components": components, "verdict_from": None, "combine": "sum", "smoothing": 0.0}
    )
    narrowed = Run(run.uri, run.config.model_copy(update={"reward": reward}))
    stage = score_rewards.STAGE
    with tempfile.TemporaryDirectory() as scratch:
        artifact = Artifact(Store(scratch), round_folder(number, "rewards"))
        stage.compute(narrowed, number, {"rewards": ArtifactWriter(artifact, _NO_KEY)}, no_progress)
        return {row["rollout_id"]: row for row in _table(artifact, REWARDS).to_pylist()}


def _table(artifact: Artifact, schema: pa.Schema) -> pa.Table:
    """All shards, with those of the schema's columns that they have."""
    shards = []
    for name in artifact.tables():
        with artifact.store.fs.open(artifact.store.path(artifact.file(name)), "rb") as stream:
            columns = pq.read_schema(stream).names
        part = pa.schema([field for field in schema if field.name in columns])
        shards.append(read_parquet(artifact.store, artifact.file(name), part))
    return pa.concat_tables(shards, promote_options="default")


def _compare_json(report: Report, stored: Artifact, again: Artifact, name: str) -> None:
    texts: list[Any] = []
    for artifact in (stored, again):
        file = artifact.file(name)
        texts.append(json.loads(artifact.store.read_bytes(file)) if artifact.store.exists(file) else None)
    if not equal(*texts):
        report.add(stored.location, "computed again the file says something else", column=name)


def recompute_evaluation(report: Report, run: Run, number: int, reward: Reward) -> None:
    """The verdicts, rewards and metrics of an evaluation once more, by its own code, from its stored answers."""
    place, config = round_folder(number, "evaluation"), run.config
    artifact = run.artifact(place)
    manifest = artifact.manifest()
    if manifest is None:
        return
    try:
        stored = artifact.read_table(EVALUATION)
        prompts = read_parquet(run.store, f"{filter_prompts.FOLDER}/eval.parquet", PROMPTS)
        again, metrics = evaluate(
            cast(Engine, _Replay(stored)), reward, prompts, config.evaluation, config.generation, seed=config.seed
        )  # fmt: skip
    except _FAILURES as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        report.add(place, f"it can't be computed again: {said}")
        return
    report.checked["evaluation computed again"] += stored.num_rows
    compare_tables(report, place, "key", _keyed(stored), _keyed(again), "computed again it is another one")
    compare_metrics(report, place, manifest.metrics, metrics)


class _Replay:
    """Gives the answers that an evaluation has stored: of an engine all that ``evaluate`` asks for."""

    def __init__(self, stored: pa.Table) -> None:
        self._rows = dict(zip(_keyed(stored)["key"].to_pylist(), stored.to_pylist(), strict=True))

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, progress: Progress = no_progress
    ) -> list[list[Completion]]:
        mode = "sample" if sampling.temperature else "greedy"
        keys = [[f"{r.prompt_id}/{mode}/{index}" for index in range(len(r.seeds))] for r in requests]
        return [[self._completion(self._rows[key]) for key in group] for group in keys]

    def _completion(self, row: dict[str, Any]) -> Completion:
        ids = row["completion_ids"]
        return Completion(
            token_ids=ids, logprobs=[0.0] * len(ids), text=row["text"], finish_reason=row["finish_reason"]
        )  # fmt: skip


def _keyed(table: pa.Table) -> pa.Table:
    """With a column that names each answer."""
    parts = (table[name].to_pylist() for name in ("prompt_id", "mode", "sample_index"))
    return table.append_column("key", pa.array([f"{p}/{m}/{i}" for p, m, i in zip(*parts, strict=True)], pa.string()))
