import json
import os
import pickle
import signal
import subprocess
import sys

import pytest

from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from tasks.run import create_or_open, discard_new, open_run, round_folder, single_writer


def other(config: RunConfig, **update) -> RunConfig:
    return config.model_copy(update=update)


def test_same_config_opens_the_same_run(tmp_path):
    uri = str(tmp_path / "run")
    run, is_new = create_or_open(uri, RunConfig(seed=3))
    again, is_new_again = create_or_open(uri, RunConfig(seed=3))
    assert (is_new, is_new_again) == (True, False)
    assert again.identity == run.identity
    assert open_run(uri).config == RunConfig(seed=3)


def test_more_rounds_and_another_tracking_store_are_the_same_run(tmp_path):
    uri = str(tmp_path / "run")
    create_or_open(uri, RunConfig(rounds=2))
    create_or_open(uri, RunConfig(rounds=5, tracking={"experiment": "other"}))
    assert open_run(uri).config.rounds == 5


def test_another_config_is_taken_over_and_its_changes_are_remembered(tmp_path):
    uri = str(tmp_path / "run")
    create_or_open(uri, RunConfig(seed=1))
    create_or_open(uri, RunConfig(seed=1))
    assert not (tmp_path / "run/config-changes.jsonl").exists()
    create_or_open(uri, RunConfig(seed=2, update={"kl_coef": 0.5}))
    create_or_open(uri, RunConfig(seed=3, update={"kl_coef": 0.5}))
    assert open_run(uri).config.seed == 3
    lines = [json.loads(line) for line in (tmp_path / "run/config-changes.jsonl").read_text().splitlines()]
    assert [line["changed"] for line in lines] == [{"seed": [1, 2], "update.kl_coef": [0.04, 0.5]}, {"seed": [2, 3]}]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="holds no run"):
        create_or_open(str(tmp_path), RunConfig())
    with pytest.raises(UserError, match="holds no run"):
        open_run(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_kill_between_the_first_two_files_is_no_obstacle(tmp_path):
    run, _ = create_or_open(str(tmp_path / "run"), RunConfig())
    (tmp_path / "run/config.yaml").unlink()
    again, is_new = create_or_open(str(tmp_path / "run"), RunConfig())
    assert is_new
    assert again.identity == run.identity


def test_damaged_config_is_one_sentence(tmp_path):
    create_or_open(str(tmp_path), RunConfig())
    (tmp_path / "config.yaml").write_bytes(b"a: [\xff")
    with pytest.raises(UserError, match="damaged"):
        open_run(str(tmp_path))


def test_discarded_run_leaves_no_folder(tmp_path):
    run, _ = create_or_open(str(tmp_path / "run"), RunConfig())
    run.store.write_bytes("rounds/0000/policy/part", b"1")
    discard_new(run)
    assert not (tmp_path / "run").exists()


def test_run_travels_to_another_process(tmp_path):
    run, _ = create_or_open(str(tmp_path / "run"), RunConfig(seed=9))
    assert run.store.exists("config.yaml")  # the opened store stays behind
    copy = pickle.loads(pickle.dumps(run))
    assert copy == run
    assert copy.identity == run.identity


def test_rounds_on_disk_are_numbers_in_order(tmp_path):
    run, _ = create_or_open(str(tmp_path / "run"), RunConfig())
    assert run.rounds_on_disk() == []
    for number in (10, 2, 0):
        run.store.write_bytes(round_folder(number, "plan.parquet"), b"")
    assert run.rounds_on_disk() == [0, 2, 10]


HOLD = """
import sys, time
from tasks.run import single_writer
with single_writer(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_second_writer_hears_who_holds_the_run_and_a_dead_holder_does_not_block(tmp_path):
    uri = str(tmp_path / "run")
    holder = subprocess.Popen([sys.executable, "-c", HOLD, uri], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"process {holder.pid} on .* since "), single_writer(uri):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with single_writer(uri):
        assert (tmp_path / "run/.lock").exists()
