from pathlib import Path

from grpo_core.artifacts import ArtifactWriter
from grpo_core.config import RunConfig
from tasks.run import Run, create_or_open
from tasks.stage import Stage, execute


def stage_of(calls: list[int]) -> Stage:
    """Leaves a record that nothing reads and a result, and takes a model."""

    def compute(run: Run, number: int, writers: dict[str, ArtifactWriter], progress: object) -> dict[str, float]:
        calls.append(number)
        for name, writer in writers.items():
            writer.write_json("told.json", name)
        return {}

    return Stage(
        name="test",
        version=1,
        folders=lambda n: {"record": f"rounds/{n:04d}/record", "result": f"rounds/{n:04d}/result"},
        config=lambda run: {},
        inputs=lambda run, n: {},
        compute=compute,
        models=lambda _run, n: ["model"],
        records=("record",),
    )


def test_a_lost_record_is_made_again_unless_that_takes_a_retired_model(tmp_path: Path) -> None:
    run, _ = create_or_open(str(tmp_path / "run"), RunConfig())
    calls: list[int] = []
    stage = stage_of(calls)
    model = ArtifactWriter(run.artifact("model"), stage.fingerprint(run, 1))
    model.write_json("weights.json", 1)
    model.finish()
    record, result = (run.artifact(folder) for folder in stage.folders(1).values())
    for _ in range(2):
        execute(stage, run, 1)
    assert len(calls) == 1
    run.store.delete(record.file("told.json"))
    execute(stage, run, 1)
    assert len(calls) == 2
    assert record.condition().done
    run.artifact("model").retire()
    run.store.delete(record.file("told.json"))
    condition = stage.condition(run, 1, stage.fingerprint(run, 1))
    assert condition.done
    assert "left as it is" in condition.why
    run.store.delete(result.file("told.json"))  # that is read by others
    assert stage.condition(run, 1, stage.fingerprint(run, 1)).state == "damaged"
