"""A round in one row, read from its manifests: what the table on the terminal and ``status --json`` show."""

import json
from typing import Any

from tasks.gate_record import gate_findings
from tasks.promotion_record import promotion_sentence
from tasks.run import Run, round_folder
from tasks.start_policy import start_of

ARTIFACTS = ("rollouts", "rewards", "advantages", "gates", "policy", "evaluation", "promotion")


def round_summary(run: Run, round_number: int) -> dict[str, Any]:
    """Metrics of a round by artifact, seconds per artifact, and in sentences what its gates found and who is champion.

    Artifacts that are not finished are left out.
    """
    told = {"findings": gate_findings(run, round_number), "champion": _promotion(run, round_number)}
    summary: dict[str, Any] = {"round": round_number, "seconds": {}, **told}
    for name in ARTIFACTS:
        artifact = run.artifact(round_folder(round_number, name))
        manifest = artifact.manifest()
        if manifest is None:
            continue
        summary[name] = dict(manifest.metrics)
        summary["seconds"][name] = read_seconds(run, artifact.file("timings.json"))
    return summary


def _promotion(run: Run, round_number: int) -> str:
    sentence = promotion_sentence(run, round_number)
    if sentence and (start := start_of(run, round_number + 1)) != round_number:
        sentence += f"; round {round_number + 1} starts from round {start}"
    return sentence


def read_seconds(run: Run, relative: str) -> float:
    """Wall-clock seconds that a stage took, from its timings file; 0 when that is gone (it is in no digest)."""
    try:
        return float(json.loads(run.store.read_bytes(relative))["seconds"])
    except (FileNotFoundError, ValueError, KeyError):
        return 0.0
