"""What a run leaves in Prefect and MLflow, and what a second ``train`` on it does."""

import json
import shutil

import pytest
from support import TINY, digests, in_prefect


def test_every_stage_of_a_run_is_a_completed_task(finished_run, prefect_server):
    found = in_prefect(finished_run, prefect_server)
    assert {name for name, state in found["tasks"] if state == "Completed"} >= {
        "initial_policy-0000",
        "filter_prompts-0000",
        "pull_labels-0001",
        "plan_round-0001",
        "generate_rollouts-0002",
        "score_rewards-0002",
        "compute_advantages-0002",
        "update_policy-0002",
        "evaluate_policy-0002",
        "promote_policy-0002",
    }
    assert {state for _, state in found["flows"]} == {"Completed"}


@pytest.mark.slow
def test_a_second_train_goes_on_and_shows_finished_stages_as_cached(command, finished_run, prefect_server, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    before = digests(run)
    done = command("train", TINY, "--run-dir", run, "--rounds", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    after = digests(run)
    assert {name: after[name] for name in before} == before
    assert "rounds/0003/policy/manifest.json" in after
    states = in_prefect(run, prefect_server)["tasks"]
    assert ["update_policy-0002", "Cached"] in states
    assert ["filter_prompts-0000", "Cached"] in states
    assert ["update_policy-0003", "Completed"] in states


def test_mlflow_holds_the_run_its_rounds_and_a_table_to_look_at(finished_run):
    from mlflow import MlflowClient

    store = finished_run.parent
    client = MlflowClient(f"sqlite:///{store}/mlflow.db")
    experiment = client.get_experiment_by_name("grpo-rounds")
    runs = client.search_runs([experiment.experiment_id])
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    (parent,) = [run for run in runs if run not in children]
    assert parent.info.status == "FINISHED"
    assert len(children) == 2
    assert {run.info.status for run in children} == {"FINISHED"}
    accuracy = client.get_metric_history(parent.info.run_id, "eval/accuracy")
    assert [point.step for point in accuracy] == [0, 1, 2]
    stored = json.loads((finished_run / "rounds/0002/policy/manifest.json").read_text())["metrics"]
    for name in ("kl", "clip_ratio", "entropy", "grad_norm", "loss"):
        points = client.get_metric_history(parent.info.run_id, f"update/{name}")
        assert {p.step: p.value for p in points}[2] == stored[name]
    names = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert {"config.yaml", "learning_curve.png", "prompts"} <= names
    tables = {item.path for item in client.list_artifacts(children[0].info.run_id)}
    assert {"rollouts", "rewards", "advantages", "labels", "rollouts_table.json", "report.html"} <= tables


def test_equal_config_and_seed_give_equal_bytes(command, finished_run, tmp_path):
    again = command("train", TINY, "--run-dir", tmp_path / "run", "--rounds", "1")
    assert again.returncode == 0, again.stderr
    mine, theirs = digests(tmp_path / "run"), digests(finished_run)
    assert "rounds/0001/policy/manifest.json" in mine
    assert mine == {name: theirs[name] for name in mine}


def test_another_seed_gives_another_run(command, finished_run, tmp_path):
    other = command("train", TINY, "--run-dir", tmp_path / "run", "--rounds", "1", "--set", "seed=2")
    assert other.returncode == 0, other.stderr
    name = "rounds/0001/rollouts/manifest.json"
    assert digests(tmp_path / "run")[name] != digests(finished_run)[name]


@pytest.mark.slow
def test_a_gate_that_stops_ends_the_run_with_one_sentence_and_a_changed_action_goes_on(command, finished_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    stop = ("--rounds", "3", "--set", "gates.actions.truncated=stop")
    stopped = command("train", TINY, "--run-dir", run, *stop)
    assert stopped.returncode == 2, stopped.stdout + stopped.stderr
    assert len(stopped.stderr.strip().splitlines()) == 1
    for part in ("Gate truncated", "round 3", "gates.truncated 0.5", "--set gates.actions.truncated=warn"):
        assert part in stopped.stderr
    assert not (run / "rounds/0003/policy").exists()
    told = command("status", run, "--json")
    assert json.loads(told.stdout)["rounds_done"] == 2
    done = command("train", TINY, "--run-dir", run, "--rounds", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round 3: gate truncated (warn): share of rollouts cut off in round 3" in done.stdout
    before = digests(finished_run)
    assert {name: value for name, value in digests(run).items() if name in before} == before
