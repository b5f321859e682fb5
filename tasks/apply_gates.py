"""Stage: compare a round's vital signs with their thresholds, and decide what its update does about them.

It leaves ``factors.json``, the only file that the update reads; ``gates.json``, what was found and done and why; and
``groups.parquet``, a row a prompt, with which later rounds compare theirs.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import task

from grpo_core.artifacts import ArtifactWriter, read_parquet
from grpo_core.diagnostics import group_table, stability_metrics, tier_metrics
from grpo_core.fingerprint import digest_json
from grpo_core.gates import Factors, Signals, collect, decide
from grpo_core.schemas import GROUPS, REWARDS, Progress
from tasks.gate_record import gate_findings
from tasks.pools import training_count
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, InputMissing, Stage, Writers, execute, input_digest, input_manifest

STAGE_VERSION = 1
FACTORS, RECORD, GROUPS_FILE = "factors.json", "gates.json", "groups.parquet"
_EPOCHS_BACK = 2  # a prompt can sit one epoch out


def read_factors(run: Run, round_number: int) -> Factors:
    """The factors in force in a round; 1 before the first. Raises InputMissing."""
    if round_number < 1:
        return Factors()
    folder = round_folder(round_number, "gates")
    try:
        return Factors(**json.loads(run.store.read_bytes(f"{folder}/{FACTORS}")))
    except (OSError, ValueError, TypeError) as error:
        raise InputMissing(folder) from error


def factors_digest(run: Run, round_number: int) -> str:
    """The identity of a round's factors alone: what else the gates found makes no update stale. Raises InputMissing."""
    return input_manifest(run, round_folder(round_number, "gates")).digest_of(lambda name: name == FACTORS)


def _metrics(run: Run, round_number: int, artifact: str) -> Mapping[str, float]:
    return input_manifest(run, round_folder(round_number, artifact)).metrics


def _is_evaluated(run: Run, round_number: int) -> bool:
    """Whether the gates count on its evaluation; those made by hand, or because a run was to end there, come and go.

    One that became due when evaluation.every changed may not be there: its policy was retired by then.
    """
    due = round_number % run.config.evaluation.every == 0
    return due and run.artifact(round_folder(round_number, "evaluation")).manifest() is not None


def _signals(run: Run, round_number: int) -> Signals:
    config = run.config.gates
    updates = range(max(1, round_number - 1 - config.window), round_number)
    evaluated = [number for number in range(round_number) if _is_evaluated(run, number)][-config.window :]
    accuracies = [_metrics(run, number, "evaluation").get("accuracy") for number in evaluated]
    return collect(
        round_number,
        first_update=_metrics(run, 1, "policy") if round_number > 1 else {},
        last_updates=[_metrics(run, number, "policy") for number in updates],
        rollouts=_metrics(run, round_number, "rollouts"),
        rewards=_metrics(run, round_number, "rewards"),
        advantages=_metrics(run, round_number, "advantages"),
        accuracies=[accuracy for accuracy in accuracies if accuracy is not None],
        is_news=_is_evaluated(run, round_number - 1),
        accuracy_margin=config.accuracy_margin,
    )


def _inputs(run: Run, round_number: int) -> Mapping[str, str]:
    # Thresholds and actions are no part of the key: they say what to do from now on; what was decided stays decided.
    inputs = {
        name: input_digest(run, round_folder(round_number, name)) for name in ("rollouts", "rewards", "advantages")
    }
    if evaluation := _evaluation_digest(run, round_number):
        inputs["evaluation"] = evaluation
    if round_number > 1:
        inputs["update"] = digest_json(dict(_metrics(run, round_number - 1, "policy")))
        # Holds what all earlier rounds' gates saw.
        inputs["gates"] = input_digest(run, round_folder(round_number - 1, "gates"))
    return inputs


def _evaluation_digest(run: Run, round_number: int) -> str | None:
    """The identity of the evaluation before a round, if its gates count on it.

    A round that was decided stays so: whether it counted on one changes neither with ``evaluation.every`` afterwards
    nor when the evaluation was harmed and its policy is gone.
    """
    decided = run.artifact(round_folder(round_number, "gates")).manifest()
    evaluation = run.artifact(round_folder(round_number - 1, "evaluation")).manifest()
    if decided is not None:
        before: str | None = decided.parts["inputs"].get("evaluation")
        return before if before is None or evaluation is None else evaluation.digest
    return evaluation.digest if evaluation and _is_evaluated(run, round_number - 1) else None


def _last_visits(run: Run, round_number: int, wanted: set[str]) -> dict[str, Mapping[str, object]]:
    """The groups of earlier rounds, by prompt: of each prompt the newest within two epochs."""
    back = _EPOCHS_BACK * (training_count(run, round_number) // run.config.data.prompts_per_round)
    found: dict[str, Mapping[str, object]] = {}
    for number in range(round_number - 1, max(0, round_number - 1 - back), -1):
        if wanted <= found.keys():
            break
        for row in read_parquet(run.store, round_folder(number, f"gates/{GROUPS_FILE}"), GROUPS).to_pylist():
            if row["prompt_id"] in wanted:
                found.setdefault(row["prompt_id"], row)
    return found


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    writer = writers["gates"]
    if not (writer.has(FACTORS) and writer.has(RECORD)):  # else what was decided by these inputs stays decided
        _decide(run, round_number, writer)
    factors = read_factors(run, round_number)
    groups = group_table(run.artifact(round_folder(round_number, "rewards")).read_table(REWARDS))
    writer.write_table(GROUPS_FILE, groups)
    return {
        "learning_rate_factor": factors.learning_rate,
        "kl_factor": factors.kl,
        "findings": float(len(gate_findings(run, round_number))),
        **tier_metrics(groups),
        **stability_metrics(groups, _last_visits(run, round_number, set(groups["prompt_id"].to_pylist()))),
    }


def _decide(run: Run, round_number: int, writer: ArtifactWriter) -> None:
    """Write what the gates decide. Raises GateStop when one ends the run."""
    decision = decide(run.config.gates, _signals(run, round_number), read_factors(run, round_number - 1))

    def write(folder: Path) -> None:
        (folder / FACTORS).write_text(json.dumps(asdict(decision.factors)) + "\n", encoding="utf-8")
        (folder / RECORD).write_text(json.dumps(decision.as_dict(), indent=1) + "\n", encoding="utf-8")

    writer.write_folder(write)
    if stop := decision.stop():
        raise stop  # without a manifest the round is unfinished; the record lies there to be read


STAGE = Stage(
    name="apply_gates",
    version=STAGE_VERSION,
    folders=lambda n: {"gates": round_folder(n, "gates")},
    config=lambda run: {"data.prompts_per_round": run.config.data.prompts_per_round},
    inputs=_inputs,
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def apply_gates(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """What the round's gates decided; cached by ``key``."""
    return execute(STAGE, run, round_number)
