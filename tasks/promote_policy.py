"""Stage: compare an evaluated policy with the champion and say who is the champion from now on.

It leaves ``decision.json``: the candidate, the champion before and after, the figures and the reason. Round 0's policy
is the first champion.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from prefect import task

from grpo_core.promotion import Comparison, Decision, cannot_tell, compare, decide, first
from grpo_core.schemas import EVALUATION, Progress
from grpo_core.seeding import hash64
from tasks import evaluate_policy
from tasks.promotion_record import RECORD, SUCCESSIONS, has_evaluation, newest_decision, promotion_folder
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest

STAGE_VERSION = 1


def is_due(run: Run, round_number: int) -> bool:
    """After each evaluation of the run's own, unless that one is lost for good."""
    due = run.config.promotion.enabled and evaluate_policy.is_due(run, round_number)
    return due and has_evaluation(run, round_number)


def _config(run: Run) -> Mapping[str, Any]:
    read = {"score", "confidence", "resamples", "min_gain"}
    return {"promotion": run.config.promotion.model_dump(mode="json", include=read), "seed": run.config.seed}


def _inputs(run: Run, round_number: int) -> Mapping[str, str]:
    inputs = {kind: input_digest(run, round_folder(round_number, kind)) for kind in ("policy", "evaluation")}
    decided = run.artifact(promotion_folder(round_number)).manifest()
    for succession in SUCCESSIONS:
        previous = newest_decision(run, round_number, succession)
        if previous is None:
            continue
        inputs[f"{succession}_decision"] = input_digest(run, promotion_folder(previous["round"]))
        champion = int(previous[succession]["champion_after"]["round"])
        evaluation = run.artifact(round_folder(champion, "evaluation")).manifest()
        # A champion that was beaten long ago may have lost its evaluation and its policy: what was decided stays so.
        before = decided.parts["inputs"].get(f"{succession}_champion", "lost") if decided else "lost"
        inputs[f"{succession}_champion"] = evaluation.digest if evaluation else before
    return inputs


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    candidate = {"round": round_number, "policy": input_digest(run, round_folder(round_number, "policy"))}
    judged: dict[int | None, tuple[Decision, Comparison | None]] = {}
    record: dict[str, Any] = dict(candidate)
    for succession in SUCCESSIONS:
        previous = newest_decision(run, round_number, succession)
        champion = previous[succession]["champion_after"] if previous else None
        against = champion["round"] if champion else None
        if against not in judged:
            judged[against] = _judge(run, round_number, against)
        decision, comparison = judged[against]
        record[succession] = {
            "champion_before": champion,
            "champion_after": candidate if decision.promotes else champion,
            "decision": decision.outcome,
            "is_worse": decision.is_worse,
            "reason": decision.reason,
            "figures": asdict(comparison) if comparison else None,
        }

    def write(folder: Path) -> None:
        (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    writers["promotion"].write_folder(write)
    told = record["registry"]
    figures = {name: float(value) for name, value in (told["figures"] or {}).items()}
    champion_after = float(told["champion_after"]["round"])
    return {"promoted": float(told["decision"] != "refused"), "champion_round": champion_after, **figures}


def _judge(run: Run, round_number: int, champion: int | None) -> tuple[Decision, Comparison | None]:
    if champion is None:
        return first(), None
    config = run.config.promotion
    if not run.artifact(round_folder(champion, "evaluation")).condition().done:
        return cannot_tell(f"the evaluation of round {champion}, the champion, is lost"), None
    seed = hash64(run.config.seed, "promotion", round_number, champion)
    figures = compare(_evaluation(run, round_number), _evaluation(run, champion), config, seed=seed)
    return decide(config, figures, champion), figures


def _evaluation(run: Run, round_number: int) -> pa.Table:
    return run.artifact(round_folder(round_number, "evaluation")).read_table(EVALUATION)


STAGE = Stage(
    name="promote_policy",
    version=STAGE_VERSION,
    folders=lambda n: {"promotion": promotion_folder(n)},
    config=_config,
    inputs=_inputs,
    compute=_compute,
)


@task(name=STAGE.name, **TASK_OPTIONS)
def promote_policy(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """Who is the champion after the round; cached by ``key``."""
    return execute(STAGE, run, round_number)
