"""A run folder with policies and their evaluations in it, as if trained: for tests of what is decided about them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from grpo_core.artifacts import ArtifactWriter
from grpo_core.config import RunConfig
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import EVALUATION
from tasks import promote_policy
from tasks.run import Run, create_or_open, round_folder
from tasks.stage import execute

PROMPTS = 20


def open_run_of(folder: Path, **config: Any) -> Run:
    values = {"name": "demo", "rounds": 4, "promotion": {"resamples": 500}} | config
    return create_or_open(str(folder), RunConfig.model_validate(values))[0]


def write_policy(run: Run, number: int, weights: str = "") -> None:
    """A policy, and after round 0 a trainer state, that are no model."""
    for kind in ("trainer_state", "policy")[number == 0 :]:
        writer = ArtifactWriter(run.artifact(round_folder(number, kind)), Fingerprint(kind, number, 1, {}, {}))
        text = f"{kind} {number} {weights}"
        writer.write_folder(lambda folder, text=text: (folder / "model.safetensors").write_text(text) and None)
        writer.finish()


def write_evaluation(run: Run, number: int, right: int, failed: Sequence[int] = ()) -> None:
    """The first ``right`` of 20 prompts are answered right; the check of those in ``failed`` failed."""
    rows = [
        {"prompt_id": f"p{n:02d}", "mode": "greedy", "sample_index": 0, "completion_ids": [1], "text": "t"}
        | {"finish_reason": "stop", "extracted": None, "gold": "1", "reward": None}
        | {"verdict": "timeout" if n in failed else "ok" if n < right else "wrong"}
        for n in range(PROMPTS)
    ]
    policy = run.artifact(round_folder(number, "policy")).manifest()
    assert policy is not None
    artifact = run.artifact(round_folder(number, "evaluation"))
    writer = ArtifactWriter(artifact, Fingerprint("evaluate_policy", number, 1, {}, {"policy": policy.digest}))
    writer.write_table("evaluation.parquet", pa.Table.from_pylist(rows, schema=EVALUATION))
    writer.finish({"accuracy": right / PROMPTS, "pass@2": 0.5})


def judge(run: Run, rights: Mapping[int, int]) -> None:
    """Rounds that answered so many prompts right, each decided about where that is due."""
    for number in range(max(rights) + 1):
        if not run.artifact(round_folder(number, "policy")).manifest():
            write_policy(run, number)
        if number in rights:
            write_evaluation(run, number, rights[number])
            if promote_policy.is_due(run, number):
                execute(promote_policy.STAGE, run, number)
