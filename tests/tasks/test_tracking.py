"""What MLflow holds of a run: once, whatever happens in between."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from recorded_run import (
    files,
    held,
    make_run,
    write_evaluation,
    write_round,
    write_start,
)

from grpo_core.artifacts import ArtifactWriter
from grpo_core.fingerprint import Fingerprint
from tasks.learning_curve import learning_curve
from tasks.run import Run, open_run, round_folder
from tasks.tracking import Tracker
from tasks.tracking_facts import metric_points, read_round

WRITES = (
    "create_experiment",
    "create_run",
    "set_tag",
    "log_batch",
    "log_artifact",
    "log_inputs",
    "set_terminated",
    "update_run",
)


def test_the_learning_curve_waits_while_more_is_to_come_soon(run):
    def curve() -> str:
        return str(held(run)["demo"]["tags"]["grpo_rounds.uploaded.learning_curve"])

    tracker = Tracker(run)
    tracker.sync(more_to_come=True)
    first = curve()
    write_round(run, 3)
    tracker.sync([3], more_to_come=True)
    assert curve() == first
    tracker.sync([3])
    assert curve() != first


def test_everything_is_there(run):
    tracker = Tracker(run)
    assert tracker.sync() is None
    tracker.set_status("FINISHED")
    record = held(run)
    assert sorted(record) == ["demo", "round-0001", "round-0002"]
    parent, child = record["demo"], record["round-0002"]
    manifest = run.artifact(round_folder(2, "evaluation")).manifest()

    assert parent["tags"]["grpo_rounds.run"] == run.identity
    assert child["tags"]["mlflow.parentRunId"] == "demo"
    assert (child["tags"]["grpo_rounds.round"], child["info"][0], parent["info"][0]) == ("2", "FINISHED", "FINISHED")
    assert child["info"][2] == parent["info"][2] == int(manifest.finished_at * 1000)

    assert parent["params"]["tracking.table_rows"] == "8"
    assert (parent["params"]["name"], parent["params"]["tracking.uri"]) == ("demo", "null")
    assert parent["files"]["config.yaml"] == run.store.read_bytes("config.yaml")

    assert [(step, value) for step, _, value in parent["metrics"]["eval/accuracy"]] == [(0, 0.25), (2, 0.75)]
    assert [(step, value) for step, _, value in parent["metrics"]["update/kl"]] == [(1, 0.01), (2, 0.02)]
    assert parent["metrics"]["model/parameters"][0][2] == 12
    assert parent["metrics"]["prompts/rejected_no_gold"][0][2] == 2
    assert child["metrics"]["eval/pass_at_2"] == [(2, int(manifest.finished_at * 1000), 0.5)]
    expected = {"reward/accuracy", "reward/reward_mean", "rollout/completion_length_mean", "update/entropy"}
    assert expected | {"advantage/zero_variance_share", "plan/epoch"} < set(child["metrics"]) & set(parent["metrics"])
    seconds = json.loads(run.store.read_bytes(round_folder(2, "rollouts/timings.json")))["seconds"]
    assert child["metrics"]["seconds/generate_rollouts"][0][2] == seconds > 0

    digests = {name: record.sha256 for name, record in run.artifact("prompts").manifest().files.items()}
    assert [(name, digest) for name, digest, *_ in parent["inputs"]] == [
        ("additions:eval", digests["eval.parquet"][:36]),
        ("additions:train", digests["train.parquet"][:36]),
    ]
    assert ("mlflow.data.context", "evaluation") in parent["inputs"][0]
    assert ("mlflow.data.context", "training") in parent["inputs"][1]

    for name in ("train", "eval", "rejected"):
        assert parent["files"][f"prompts/{name}.parquet"] == run.store.read_bytes(f"prompts/{name}.parquet")
    assert parent["files"]["learning_curve.png"] == learning_curve(run)
    assert parent["files"]["evaluation/evaluation.parquet"]
    shards = [f"{part}/shard-0000{n}.parquet" for part in ("rollouts", "rewards", "advantages") for n in range(2)]
    tables = [*shards, "plan.parquet", "evaluation/evaluation.parquet"]
    assert sorted(child["files"]) == sorted([*tables, "rollouts_table.json", "report.html"])
    for name in tables:
        assert child["files"][name] == run.store.read_bytes(round_folder(2, name)), name


def count_writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    for name in WRITES:
        real = getattr(MlflowClient, name)

        def counted(self, *args, _name=name, _real=real, **kwargs):
            calls.append(_name)
            return _real(self, *args, **kwargs)

        monkeypatch.setattr(MlflowClient, name, counted)
    return calls


def test_again_and_in_another_process_adds_nothing(run, monkeypatch):
    tracker = Tracker(run)
    tracker.sync()
    tracker.set_status("FINISHED")
    before = held(run)
    calls = count_writes(monkeypatch)
    tracker.sync()
    tracker.sync([1, 2])
    again = Tracker(open_run(run.uri))
    again.sync()
    again.set_status("FINISHED")
    assert again.run_id == tracker.run_id
    assert calls == []
    code = (
        "import sys; from tasks.run import open_run; from tasks.tracking import Tracker\n"
        "tracker = Tracker(open_run(sys.argv[1])); tracker.sync(); tracker.set_status('FINISHED')\n"
        "print(tracker.run_id)"
    )
    done = subprocess.run([sys.executable, "-c", code, run.uri], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (tracker.run_id, "")
    assert held(run) == before


def test_deaths_between_writes_are_made_good(run, tmp_path, monkeypatch):
    elsewhere = run.config.tracking.model_copy(update={"uri": f"sqlite:///{tmp_path}/calm/mlflow.db"})
    calm = Run(run.uri, run.config.model_copy(update={"tracking": elsewhere}))
    tracker = Tracker(calm)
    tracker.set_status("RUNNING")
    tracker.sync()
    tracker.set_status("FINISHED")
    expected = held(calm)

    left = 0
    for name in WRITES:
        real = getattr(MlflowClient, name)

        def dies_after_the_last(self, *args, _real=real, **kwargs):
            nonlocal left
            made = _real(self, *args, **kwargs)
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return made

        monkeypatch.setattr(MlflowClient, name, dies_after_the_last)
    for deaths in range(1000):
        left = 1 + deaths % 6  # a group of files that belong together goes up in one life
        tracker = Tracker(run)
        with contextlib.suppress(KeyboardInterrupt):
            tracker.sync()
            tracker.set_status("FINISHED")
            break
    assert 15 < deaths < 999
    found = held(run)
    # The two differ in nothing but the setting that sent them to two places.
    for record, value in ((expected, elsewhere.uri), (found, "null")):
        assert record["demo"]["params"].pop("tracking.uri") == value
    assert found == expected


def test_a_round_in_the_making_is_completed_later(run):
    write_round(run, 3, parts=["plan.parquet", "rollouts"])
    tracker = Tracker(run)
    tracker.sync([3])
    tracker.set_status("KILLED")
    record = held(run)
    assert sorted(record) == ["demo", "round-0003"]
    half = record["round-0003"]
    assert half["info"][0] == record["demo"]["info"][0] == "KILLED"
    assert "rollouts_table.json" not in half["files"]
    assert "update/kl" not in half["metrics"]

    write_round(run, 3, parts=["rewards", "advantages", "policy"])
    resumed = Tracker(open_run(run.uri))
    resumed.set_status("RUNNING")
    resumed.sync()
    record = held(run)
    assert sorted(record) == ["demo", "round-0001", "round-0002", "round-0003"]
    whole = record["round-0003"]
    assert (whole["info"][0], record["demo"]["info"][0]) == ("FINISHED", "RUNNING")
    assert "rollouts_table.json" in whole["files"]
    assert all(len(points) == 1 for points in whole["metrics"].values())
    for points in record["demo"]["metrics"].values():
        assert len({step for step, *_ in points}) == len(points)


def test_a_stage_made_again_with_the_same_values_adds_no_point(run):
    Tracker(run).sync()
    for number, accuracy in ((0, 0.25), (2, 0.75)):
        before = run.artifact(round_folder(number, "evaluation")).manifest()
        time.sleep(0.01)
        write_evaluation(run, number, accuracy)
        assert run.artifact(round_folder(number, "evaluation")).manifest().finished_at > before.finished_at
    Tracker(run).sync()
    record = held(run)
    assert [step for step, *_ in record["demo"]["metrics"]["eval/accuracy"]] == [0, 2]
    assert len(record["round-0002"]["metrics"]["eval/accuracy"]) == 1


def test_non_finite_values_are_dropped_and_counted(run):
    write_round(run, 3, grad_norm=float("inf"), loss=float("nan"))
    Tracker(run).sync()
    record = held(run)
    for name in ("demo", "round-0003"):
        metrics = record[name]["metrics"]
        assert not {"update/grad_norm", "update/loss"} & set(metrics)
        assert [(step, value) for step, _, value in metrics["nonfinite_dropped"]] == [(3, 2.0)]


def test_free_keys_may_change_and_show_as_tags(run):
    Tracker(run).sync()
    more = make_run(Path(run.uri).parent, rounds=9, name="demo")
    Tracker(more).sync()
    parent = held(more)["demo"]
    assert (parent["params"]["rounds"], parent["tags"]["config.rounds"]) == ("3", "9")
    assert [key for key in parent["tags"] if key.startswith("config.")] == ["config.rounds"]
    assert parent["files"]["config.yaml"] == run.store.read_bytes("config.yaml")
    Tracker(run).sync()
    assert held(run)["demo"]["tags"]["config.rounds"] == "3"


def test_long_values_are_no_params(run):
    long = run.config.tracking.model_copy(update={"experiment": "x" * 501})
    from tasks.tracking_facts import params_of

    params = params_of(run.config.model_copy(update={"tracking": long}))
    assert "tracking.experiment" not in params
    assert params["tracking.table_rows"] == "8"


def test_the_curve_follows_the_rounds(run):
    tracker = Tracker(run)
    tracker.sync()
    before = held(run)["demo"]["files"]["learning_curve.png"]
    assert before == learning_curve(run)
    assert before.startswith(b"\x89PNG")
    write_round(run, 3, entropy=float("nan"))
    tracker.sync([3])
    after = held(run)["demo"]["files"]["learning_curve.png"]
    assert after == learning_curve(run) != before


def test_the_curve_of_a_run_that_has_only_begun(tmp_path):
    run = make_run(tmp_path)
    nothing = learning_curve(run)
    write_start(run)
    assert learning_curve(run) != nothing


def test_reward_up_while_held_out_accuracy_stands_still_is_a_metric_of_the_round(tmp_path: Path) -> None:
    run = make_run(tmp_path, evaluation={"every": 1})
    for number, accuracy in ((0, 0.25), (1, None), (2, 0.75), (3, 0.25)):
        if number:
            write_round(run, number)
        if accuracy is not None:
            write_evaluation(run, number, accuracy)
    points = {p.key: (p.step, p.value) for p in metric_points(read_round(run, 3)) if p.key.startswith("monitor/")}
    # Evaluated at 0, 2 and 3 as 0.25, 0.75, 0.25; rewards of rounds 1 to 3 are 1/3, 2/3, 1.
    assert points == {
        "monitor/reward_rise": (3, pytest.approx(1.0)),
        "monitor/heldout_rise": (3, pytest.approx(3 * 0.25 / 7)),
        "monitor/reward_up_heldout_flat": (3, 0.0),
    }
    assert read_round(run, 2).trend == {}  # two evaluations are no trend
    before = read_round(run, 3).digest
    write_evaluation(run, 2, 0.25)
    assert read_round(run, 3).trend["reward_up_heldout_flat"] == 1.0
    assert read_round(run, 3).digest != before


# -- gates --


def test_what_gates_did_is_a_tag_a_file_and_metrics_also_after_a_stop(run: Run) -> None:
    def gates(number: int, action: str) -> None:
        finding = {"gate": "kl", "action": action, "reason": "KL is 2, above gates.kl 1"}
        text = json.dumps({"findings": [finding]}).encode()
        writer = ArtifactWriter(
            run.artifact(round_folder(number, "gates")), Fingerprint("apply_gates", number, 1, {}, {})
        )
        writer.write_folder(lambda folder: (folder / "gates.json").write_bytes(text) and None)
        if action != "stop":
            writer.finish({"learning_rate_factor": 0.5})

    def round_run(number: int) -> Any:
        client = MlflowClient(Tracker(run).place.uri)
        experiment = client.get_experiment_by_name(run.config.tracking.experiment)
        found = client.search_runs([experiment.experiment_id], f"tags.grpo_rounds.round = '{number}'")
        return found[0]

    tracker = Tracker(run)
    gates(1, "lower_lr")
    write_round(run, 3, ("plan.parquet", "rollouts"))
    gates(3, "stop")
    assert tracker.sync() is None
    first = round_run(1)
    assert first.data.tags["grpo_rounds.gates"] == "kl (lower_lr): KL is 2, above gates.kl 1"
    assert first.data.metrics["gate/learning_rate_factor"] == 0.5
    assert "gates/gates.json" in dict(files(MlflowClient(tracker.place.uri), first.info.run_id))
    assert round_run(3).data.tags["grpo_rounds.gates"] == "kl (stop): KL is 2, above gates.kl 1"
    assert "grpo_rounds.gates" not in round_run(2).data.tags
    gates(3, "warn")
    assert tracker.sync([3]) is None
    assert round_run(3).data.tags["grpo_rounds.gates"] == "kl (warn): KL is 2, above gates.kl 1"
