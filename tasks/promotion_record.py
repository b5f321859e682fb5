"""What was decided about a run's policies, read back from ``rounds/0007/promotion/decision.json``.

There are two successions of champions. ``registry`` takes every policy that was decided about, and moves the alias in
MLflow. ``training`` takes only the rounds that ``evaluation.every`` names, and is what a round may go back to: a run
that ended early, and was evaluated there for that reason alone, goes on as if it had never ended.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from tasks.run import Run, round_folder

Succession = Literal["registry", "training"]
SUCCESSIONS: tuple[Succession, ...] = ("registry", "training")
RECORD = "decision.json"


def promotion_folder(round_number: int) -> str:
    """Where the decision about a round's policy lies."""
    return round_folder(round_number, "promotion")


def decision_about(run: Run, round_number: int) -> Mapping[str, Any] | None:
    """The record of the policy that a round has now; None when nothing was decided about that one, or it is harmed."""
    artifact = run.artifact(promotion_folder(round_number))
    decided, policy = artifact.manifest(), run.artifact(round_folder(round_number, "policy")).manifest()
    if decided is None or policy is None or decided.parts["inputs"].get("policy") != policy.digest:
        return None
    if not artifact.condition().done:
        return None
    record: dict[str, Any] = json.loads(run.store.read_bytes(artifact.file(RECORD)))
    return record


def newest_decision(run: Run, before: int, succession: Succession) -> Mapping[str, Any] | None:
    """The record of the last round before this one that the succession takes; None when there is none."""
    for number in range(before - 1, -1, -1):
        if succession == "training" and number % run.config.evaluation.every:
            continue
        if record := decision_about(run, number):
            return record
    return None


def champion_round(run: Run, before: int, succession: Succession) -> int | None:
    """The round whose policy is the champion when this round begins."""
    record = newest_decision(run, before, succession)
    return None if record is None else int(record[succession]["champion_after"]["round"])


def has_evaluation(run: Run, round_number: int) -> bool:
    """Whether a round's evaluation lies there whole, or will when its stage has run."""
    policy, evaluation = (run.artifact(round_folder(round_number, kind)) for kind in ("policy", "evaluation"))
    return not policy.is_retired or evaluation.condition().done


def promotion_sentence(run: Run, round_number: int) -> str:
    """What was decided and why, for the terminal; empty when nothing was."""
    record = decision_about(run, round_number)
    if record is None:
        return ""
    found = record["registry"]
    word = {"first": "champion", "promoted": "promoted to champion", "refused": "not promoted"}[found["decision"]]
    return f"{word}: {found['reason']}"
