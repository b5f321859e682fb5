"""What a run folder says, in MLflow's terms: metrics and params."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpo_core.artifacts import TIMINGS, Manifest
from grpo_core.config import RunConfig
from grpo_core.fingerprint import digest_json
from grpo_core.rewards.monitor import trend
from tasks.gate_record import gate_findings
from tasks.pools import joining_rounds, pool_folder
from tasks.run import Run, round_folder
from tasks.summary import read_seconds

if TYPE_CHECKING:
    from mlflow.entities import Metric

# Artifact of a round -> the first part of its metrics' names, by which MLflow groups its charts.
GROUPS = {
    "labels": "labels",
    "rollouts": "rollout",
    "rewards": "reward",
    "difficulty": "difficulty",
    "advantages": "advantage",
    "gates": "gate",
    "policy": "update",
    "evaluation": "eval",
    "promotion": "promotion",
}
TABLES = (
    *("labels", "plan.parquet", "rollouts", "rewards", "difficulty", "advantages", "gates"),
    *("reference", "steps", "evaluation", "promotion"),
)
_TOLD_ELSEWHERE = ("reference", "steps")  # their stage's metrics and seconds are its policy's
_LONGEST_PARAM = 500
_TREND_EVALUATIONS = 5  # the window in which reward and held-out accuracy are compared


@dataclass(frozen=True, slots=True)
class RoundOnDisk:
    """What a round's finished artifacts say, read once."""

    number: int
    manifests: dict[str, Manifest]
    seconds: dict[str, float]
    trend: Mapping[str, float] = field(default_factory=dict)  # the monitor's; empty without an evaluation
    findings: tuple[str, ...] = ()  # of the gates, also where one stopped the round

    @property
    def digest(self) -> str:
        """The identity of everything here: equal means that nothing has happened since."""
        parts = {n: [m.digest, m.finished_at, dict(m.metrics), self.seconds[n]] for n, m in self.manifests.items()}
        return digest_json([parts, dict(self.trend), self.findings])

    @property
    def started_ms(self) -> int:
        """When its first artifact was finished."""
        return min((milliseconds(m.finished_at) for m in self.manifests.values()), default=0)

    @property
    def finished_ms(self) -> int:
        return max((milliseconds(m.finished_at) for m in self.manifests.values()), default=0)

    @property
    def summary(self) -> dict[str, Any]:
        """As ``tasks.summary.round_summary`` gives it, without the seconds."""
        return {"round": self.number} | {name: dict(m.metrics) for name, m in self.manifests.items()}


def read_round(run: Run, number: int) -> RoundOnDisk:
    """Manifests and timings of a round's finished artifacts, by name."""
    manifests: dict[str, Manifest] = {}
    seconds: dict[str, float] = {}
    for name in dict.fromkeys((*TABLES, *GROUPS)):
        artifact = run.artifact(round_folder(number, name))
        manifest = artifact.manifest()
        if manifest is not None:
            manifests[name] = manifest
            seconds[name] = read_seconds(run, artifact.file(artifact.prefix + TIMINGS))
    trend_here = _trend(run, number) if "evaluation" in manifests else {}
    return RoundOnDisk(number, manifests, seconds, trend_here, tuple(gate_findings(run, number)))


def _trend(run: Run, number: int) -> dict[str, float]:
    """Held-out accuracy against the mean reward, over the last rounds that were evaluated, up to this one.

    A metric of the record and not of an artifact: it looks at evaluations, which come after a round's rewards.
    """
    accuracy: dict[int, float] = {}
    stderr = 0.0
    for earlier in range(number, -1, -1):
        if earlier % run.config.evaluation.every:  # made by hand, or because the run was to end there: they come and go
            continue
        metrics = _metrics(run, earlier, "evaluation")
        if "accuracy" in metrics:
            stderr = stderr if accuracy else metrics.get("accuracy_stderr", 0.0)
            accuracy[earlier] = metrics["accuracy"]
            if len(accuracy) == _TREND_EVALUATIONS:
                break
    window = range(min(accuracy, default=0), number + 1)
    rewards = {n: found["reward_mean"] for n in window if "reward_mean" in (found := _metrics(run, n, "rewards"))}
    return trend(rewards, accuracy, stderr)


def _metrics(run: Run, number: int, name: str) -> Mapping[str, float]:
    manifest = run.artifact(round_folder(number, name)).manifest()
    return manifest.metrics if manifest else {}


def pools_on_disk(run: Run) -> dict[str, RoundOnDisk]:
    """The finished pools of prompts by folder, each as if it were a part of the round from which it may be taken."""
    found = {}
    for first in joining_rounds(run.config.data):
        folder = pool_folder(first)
        manifest = run.artifact(folder).manifest()
        if manifest is not None:
            number = first if first > 1 else 0
            found[folder] = RoundOnDisk(number, {"prompts": manifest}, {"prompts": 0.0}, {})
    return found


def metric_points(found: RoundOnDisk) -> list["Metric"]:
    """A round's metrics at its number as step, with the manifests' times, so that MLflow knows a repeated point.

    Non-finite values would break MLflow's pages: they are left out and counted in ``nonfinite_dropped``.
    """
    from mlflow.entities import Metric

    points, dropped = [], 0
    for name, manifest in found.manifests.items():
        if name in _TOLD_ELSEWHERE:
            continue
        at = milliseconds(manifest.finished_at)
        group = "model" if (name, found.number) == ("policy", 0) else GROUPS.get(name, name.partition(".")[0])
        values = {f"{group}/{metric_name(key)}": float(value) for key, value in manifest.metrics.items()}
        if found.seconds[name]:
            values[f"seconds/{manifest.parts['stage']}"] = found.seconds[name]
        points += [Metric(key, value, at, found.number) for key, value in values.items() if math.isfinite(value)]
        dropped += sum(not math.isfinite(value) for value in values.values())
    points += [Metric(f"monitor/{key}", value, found.finished_ms, found.number) for key, value in found.trend.items()]
    if dropped:
        points.append(Metric("nonfinite_dropped", float(dropped), found.finished_ms, found.number))
    return points


def evaluation_metrics(manifest: Manifest) -> dict[str, float]:
    """The finite metrics of an evaluation by the names that ``metric_points`` gives them."""
    named = {f"{GROUPS['evaluation']}/{metric_name(key)}": float(value) for key, value in manifest.metrics.items()}
    return {key: value for key, value in named.items() if math.isfinite(value)}


def metric_name(key: str) -> str:
    """A name that MLflow takes: ``pass@8`` becomes ``pass_at_8``."""
    return re.sub(r"[^\w./ -]", "_", key.replace("@", "_at_"), flags=re.ASCII)


def params_of(config: RunConfig) -> dict[str, str]:
    """The config as MLflow's params; a long value is left out (MLflow would cut it), config.yaml has it whole."""
    return {key: value for key, value in flatten(config.model_dump(mode="json")) if len(value) <= _LONGEST_PARAM}


def flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and texts of nested config values; what is no text is written as JSON."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def milliseconds(seconds: float) -> int:
    """MLflow counts time in whole milliseconds since the epoch."""
    return int(seconds * 1000)
