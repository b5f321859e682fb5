"""People's labels as a round has them stored, and which of them its stages must reckon with."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_core.fingerprint import digest_json
from grpo_core.labels.label import Label, from_table
from grpo_core.schemas import LABELS, PLAN
from tasks.run import Run, round_folder
from tasks.stage import InputMissing

FOLDER = "labels"
FILE = "labels.parquet"


def stored_labels(run: Run, round_number: int) -> list[Label]:
    """All labels that were known when the round began; none for a round from before there were labels.

    Raises:
        InputMissing: the table is not as its manifest says.
    """
    folder = round_folder(round_number, FOLDER)
    artifact = run.artifact(folder)
    manifest = artifact.manifest()
    if manifest is None or manifest.rows == 0:
        return []
    if not artifact.condition().done:
        raise InputMissing(folder)
    return from_table(artifact.read_table(LABELS))


def scoring_labels(run: Run, round_number: int) -> list[Label]:
    """Verdicts and golds that the config lets count and that speak of a prompt of this round. Raises InputMissing."""
    config = run.config.labels
    kinds = {"verdict"} if config.verdicts == "override" else set()
    kinds |= {"gold"} if config.golds == "override" else set()
    labels = [label for label in stored_labels(run, round_number) if label.kind in kinds]
    prompts = _prompts(run, round_number) if labels else set()
    return [label for label in labels if label.prompt_id in prompts]


def tier_labels(run: Run, round_number: int) -> list[Label]:
    """Tiers by which this round's boundaries move; they speak of all prompts' rollouts. Raises InputMissing."""
    if run.config.labels.tiers == "ignore" or "tier_labels" not in run.config.advantage.read_options():
        return []
    return [label for label in stored_labels(run, round_number) if label.kind == "tier" and label.reward is not None]


def labels_input(labels: Sequence[Label], *settings: Any) -> Mapping[str, str]:
    """The labels as an input of a stage: none where none counts, so that nothing is made again for their sake."""
    if not labels:
        return {}
    said = [{key: value for key, value in asdict(label).items() if key != "rationale"} for label in labels]
    return {"labels": digest_json([said, *settings])}


def _prompts(run: Run, round_number: int) -> set[str]:
    artifact = run.artifact(round_folder(round_number, "plan.parquet"))
    if not artifact.condition().done:
        raise InputMissing(artifact.location)
    return set(artifact.read_table(PLAN)["prompt_id"].to_pylist())
