"""A run folder as its stages would leave it, row by row by hand, and all that MLflow holds of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from mlflow import MlflowClient
from mlflow.entities import ViewType

from grpo_core.artifacts import ArtifactWriter
from grpo_core.config import RunConfig
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import ADVANTAGES, EVALUATION, PLAN, PROMPTS, REJECTED, REWARDS, ROLLOUTS, rollout_id
from tasks.run import Run, create_or_open, round_folder
from tasks.tracking import Tracker

G = 4
PROMPT_IDS = [f"p{number}" for number in range(6)]
ROUND = ("plan.parquet", "rollouts", "rewards", "advantages", "policy")


def make_run(folder: Path, **config: Any) -> Run:
    tracking = {"table_rows": 2 * G} | config.pop("tracking", {})
    values = {"name": "demo", "seed": 3, "rounds": 3, "tracking": tracking} | config
    return create_or_open(str(folder / "demo"), RunConfig.model_validate(values))[0]


def write(run: Run, location: str, stage: str, number: int, tables: dict[str, pa.Table], metrics: dict) -> None:
    writer = ArtifactWriter(run.artifact(location), Fingerprint(stage, number, 1, {}, {}))
    for name, table in tables.items():
        writer.write_table(name, table)
    writer.finish(metrics)


def write_prompts(run: Run) -> None:
    def prompts(ids: Sequence[str]) -> pa.Table:
        rows = [
            {"prompt_id": i, "source": "s", "source_row": n, "prompt": f"What is {i}?", "gold": "1", "prompt_ids": [1]}
            for n, i in enumerate(ids)
        ]
        return pa.Table.from_pylist(rows, schema=PROMPTS)

    rejected = [
        {"source": "s", "source_row": n, "prompt": None, "gold": None, "reason": reason, "detail": "d"}
        for n, reason in enumerate(["no_gold", "duplicate", "no_gold"])
    ]
    tables = {
        "train.parquet": prompts(PROMPT_IDS),
        "eval.parquet": prompts(["e0", "e1"]),
        "rejected.parquet": pa.Table.from_pylist(rejected, schema=REJECTED),
    }
    write(run, "prompts", "filter_prompts", 0, tables, {"train": 6.0, "eval": 2.0, "rejected_no_gold": 2.0})


def write_start(run: Run) -> None:
    write(run, round_folder(0, "policy"), "initial_policy", 0, {}, {"parameters": 12.0})
    write_evaluation(run, 0, 0.25)


def write_evaluation(run: Run, number: int, accuracy: float) -> None:
    rows = [
        {"prompt_id": "e0", "mode": "greedy", "sample_index": 0, "completion_ids": [5], "text": "1"}
        | {"finish_reason": "stop", "verdict": "ok", "extracted": "1", "gold": "1", "reward": 1.0}
    ]
    table = pa.Table.from_pylist(rows, schema=EVALUATION)
    metrics = {"accuracy": accuracy, "accuracy_stderr": 0.1, "pass@2": 0.5}
    write(run, round_folder(number, "evaluation"), "evaluate_policy", number, {"evaluation.parquet": table}, metrics)


def write_round(run: Run, number: int, parts: Sequence[str] = ROUND, **policy_metrics: float) -> None:
    """A round of two shards of three groups; sample 0 is right, sample 3 has no reward."""
    keys = [
        {"rollout_id": rollout_id(number, p, i), "round": number, "prompt_id": p, "sample_index": i}
        for p in PROMPT_IDS
        for i in range(G)
    ]
    sampling = {"seed": 2**64 - 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 9}
    engine = {"policy_digest": "d", "engine": "e", "engine_version": "1"}
    rollouts = [
        key
        | {"prompt_ids": [1], "completion_ids": [7] * (key["sample_index"] + 1), "finish_reason": "stop"}
        | {"logprobs": [-0.5] * (key["sample_index"] + 1), "text": f"\\boxed{{{key['sample_index']}}} é"}
        | sampling
        | engine
        for key in keys
    ]
    rewards = [
        key
        | {"verdict": ["ok", "wrong", "unparsable", "timeout"][key["sample_index"]]}
        | {"extracted": ["1", "2", None, None][key["sample_index"]], "gold": "1", "components": [("correct", 1.0)]}
        | {"reward": [1.0, 0.0, 0.0, None][key["sample_index"]], "detail": ""}
        for key in keys
    ]
    advantages = [
        key
        | {"reward": [1.0, 0.0, 0.0, None][key["sample_index"]], "group_size": G, "group_valid": 3}
        | {"group_mean": 1 / 3, "group_std": 0.5, "zero_variance": False}
        | {"advantage": [1.25, -0.75, -0.75, 0.0][key["sample_index"]], "in_loss": key["sample_index"] < 3}
        for key in keys
    ]
    columns = {"epoch": 0, "turn": "epoch", "reserve": False}
    plan = [{"position": n, "prompt_id": p, **columns} for n, p in enumerate(PROMPT_IDS)]

    def shards(rows: list[dict], schema: pa.Schema) -> dict[str, pa.Table]:
        table = pa.Table.from_pylist(rows, schema=schema)
        return {"shard-00000.parquet": table.slice(0, 3 * G), "shard-00001.parquet": table.slice(3 * G)}

    made = {
        "plan.parquet": ("plan_round", {"plan.parquet": pa.Table.from_pylist(plan, schema=PLAN)}, {"epoch": 0.0}),
        "rollouts": ("generate_rollouts", shards(rollouts, ROLLOUTS), {"completion_length_mean": 2.5}),
        "rewards": ("score_rewards", shards(rewards, REWARDS), {"accuracy": number / 4, "reward_mean": number / 3}),
        "advantages": ("compute_advantages", shards(advantages, ADVANTAGES), {"zero_variance_share": 0.5}),
        "policy": ("update_policy", {}, {"kl": 0.01 * number, "entropy": 1.0} | policy_metrics),
    }
    for name in parts:
        stage, tables, metrics = made[name]
        write(run, round_folder(number, name), stage, number, tables, metrics)


def held(run: Run, uri: str | None = None) -> dict[str, Any]:
    """All that MLflow holds, by run name and free of the ids that it makes up itself."""
    client = MlflowClient(tracking_uri=uri or Tracker(run).place.uri)
    experiment = client.get_experiment_by_name(run.config.tracking.experiment)
    runs = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
    names = {found.info.run_id: found.info.run_name for found in runs}
    assert len(set(names.values())) == len(runs), names
    holdings = {}
    for found in runs:
        identity, tags = found.info.run_id, dict(found.data.tags)
        if "mlflow.parentRunId" in tags:
            tags["mlflow.parentRunId"] = names[tags["mlflow.parentRunId"]]
        history = {key: client.get_metric_history(identity, key) for key in found.data.metrics}
        holdings[found.info.run_name] = {
            "info": (found.info.status, found.info.start_time, found.info.end_time, found.info.lifecycle_stage),
            "tags": tags,
            "params": found.data.params,
            "metrics": {k: sorted((m.step, m.timestamp, m.value) for m in points) for k, points in history.items()},
            "inputs": sorted(
                (one.dataset.name, one.dataset.digest, *sorted((tag.key, tag.value) for tag in one.tags))
                for one in found.inputs.dataset_inputs
            ),
            "files": dict(files(client, identity)),
        }
    return holdings


def files(client: MlflowClient, run_id: str, folder: str = "") -> Iterator[tuple[str, bytes]]:
    for found in client.list_artifacts(run_id, folder):
        if found.is_dir:
            yield from files(client, run_id, found.path)
        else:
            yield found.path, Path(client.download_artifacts(run_id, found.path)).read_bytes()
