"""``evaluate`` beside a process that writes the run."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from judged_run import write_policy
from stored_run import store_run

from flows import train
from flows.evaluate import evaluate_round
from grpo_core.artifacts import ArtifactWriter
from tasks.evaluate_policy import STAGE
from tasks.run import Run, create_or_open, open_run, round_folder, single_writer


def measured(run: Run, number: int, accuracy: float) -> None:
    """The evaluation of a round that the run's config asks for, as if it had been made."""
    artifact = run.artifact(round_folder(number, "evaluation"))
    ArtifactWriter(artifact, STAGE.fingerprint(run, number)).finish({"accuracy": accuracy})


def test_what_is_measured_is_the_run_as_the_writer_before_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store_run(tmp_path / "run", {1: {"a": ["42"]}}, name="demo", rounds=2)
    write_policy(run, 0)
    write_policy(run, 1)
    held = ExitStack()
    held.enter_context(single_writer(run.uri))

    def writer_ends(_: float) -> None:
        """A round and a change of the config by the one that holds the lock, while evaluate waits for it."""
        evaluation = run.config.evaluation.model_copy(update={"samples": 3})
        later, _ = create_or_open(run.uri, run.config.model_copy(update={"evaluation": evaluation}))
        write_policy(later, 2)
        measured(later, 2, 0.75)
        held.close()

    monkeypatch.setattr(train.time, "sleep", writer_ends)
    assert evaluate_round(run.uri, None, 60)[:2] == (2, {"accuracy": 0.75})
    assert open_run(run.uri).config.evaluation.samples == 3
