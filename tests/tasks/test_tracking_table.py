"""The table of rollouts that MLflow's UI shows."""

import numpy as np
import pytest
from mlflow import MlflowClient
from recorded_run import G, files, held, make_run, write_prompts, write_round

from tasks.rollout_table import rollout_table
from tasks.tracking import Tracker


def test_the_table_is_what_log_table_would_write(run, monkeypatch):
    tracker = Tracker(run)
    tracker.sync()
    client = MlflowClient(tracking_uri=tracker.place.uri)
    experiment = client.get_experiment_by_name("grpo-rounds").experiment_id
    child = next(found for found in client.search_runs([experiment]) if found.info.run_name == "round-0001")
    other = client.create_run(experiment)
    client.log_table(other.info.run_id, rollout_table(run, 1, 2 * G), "rollouts_table.json")
    ours, theirs = (dict(files(client, one.info.run_id))["rollouts_table.json"] for one in (child, other))
    assert ours == theirs
    tags = [client.get_run(one.info.run_id).data.tags["mlflow.loggedArtifacts"] for one in (child, other)]
    assert tags[0] == tags[1]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.place.uri)
    table = client.load_table(experiment, "rollouts_table.json", run_ids=[child.info.run_id])
    assert len(table) == 2 * G
    assert table["advantage"].tolist() == [1.25, -0.75, -0.75, 0.0] * 2
    assert table["completion_length"].tolist() == [1, 2, 3, 4] * 2
    assert table["verdict"].tolist() == ["ok", "wrong", "unparsable", "timeout"] * 2
    assert np.isnan(table["reward"][3])
    assert table["completion"][1] == "\\boxed{1} é"
    prompts = [f"What is {one.split('/')[1]}?" for one in table["rollout_id"]]
    assert table["prompt"].tolist() == prompts

    reasons = client.load_table(experiment, "rejected_reasons.json", run_ids=[tracker.run_id])
    assert dict(zip(reasons["reason"], reasons["rows"], strict=True)) == {"duplicate": 1, "no_gold": 2}


@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (G, 1), (2 * G - 1, 1), (3 * G, 3), (1000, 6)])
def test_the_table_takes_whole_groups(run, rows, groups):
    table = rollout_table(run, 1, rows)
    prompt_ids = [one.split("/")[1] for one in table["rollout_id"]]
    assert len(table) == groups * G
    assert {prompt_ids.count(one) for one in prompt_ids} == {G}


def test_other_rounds_show_other_groups(run):
    chosen = []
    for number in range(1, 3):
        chosen.append(sorted({one.split("/")[1] for one in rollout_table(run, number, 2 * G)["rollout_id"]}))
    assert chosen[0] != chosen[1]


def test_no_table_is_made_when_none_is_wanted(tmp_path):
    run = make_run(tmp_path, tracking={"table_rows": 0})
    write_prompts(run)
    write_round(run, 1)
    Tracker(run).sync()
    assert "rollouts_table.json" not in held(run)["round-0001"]["files"]
