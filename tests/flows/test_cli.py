"""The command line as a user meets it: bad input first, then a whole run and what is said about it."""

import json
import os

import pytest
from support import TINY


def refused(done, *named: str) -> None:
    """Exit 2, one sentence with the names in it, no traceback."""
    assert done.returncode == 2, done.stdout + done.stderr
    sentence = done.stderr.strip()
    assert sentence.startswith("error: "), sentence
    assert "Traceback" not in done.stdout + done.stderr
    assert len(sentence.splitlines()) == 1, sentence
    for name in named:
        assert name in sentence, sentence


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["generation.group_sise=4"], ["generation.group_sise", "known here", "group_size"]),
        (["generation.group_size=1"], ["generation.group_size"]),
        (["data.source=nowhere.jsonl"], ["data.source", "nowhere.jsonl"]),
        (["data.source=rows.jsonl", "data.gold_column=gone"], ["data.gold_column", "gone", "question"]),
        (["model.name=package:not_there_at_all"], ["model.name", "pip install"]),
        (["model.name=./no/such/folder"], ["model.name"]),
        (["model.name=nobody/nothing"], ["model.name", "nobody/nothing"]),
        (["reward.name=no.such:thing"], ["reward.name", "no.such:thing"]),
        (["data.eval_size=400"], ["data.eval_size"]),
        (["data.source=rows.jsonl", "data.max_prompt_tokens=2"], ["data.max_prompt_tokens", "too_long"]),
        (["data.prompts_per_round=300"], ["data.prompts_per_round"]),
        (["generation.max_new_tokens=1020"], ["generation.max_new_tokens", "context of 1024"]),
    ],
    ids=lambda value: value[0] if value and "=" in value[0] else "",
)
def test_bad_input_is_one_sentence_and_leaves_nothing(command, tmp_path, overrides, named):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{n} + {n}?", "answer": str(2 * n)}) + "\n" for n in range(40)))
    sets = [f"--set={override.replace('rows.jsonl', str(rows))}" for override in overrides]
    refused(command("train", TINY, "--run-dir", tmp_path / "run", *sets), *named)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.jsonl"]


@pytest.mark.parametrize("arguments", [["resume"], ["status"], ["evaluate"], ["track"]])
def test_commands_on_a_folder_without_a_run(command, tmp_path, arguments):
    refused(command(*arguments, tmp_path), "holds no run")


def test_wrong_words_are_explained_without_a_traceback(command):
    done = command("train")
    assert done.returncode == 2
    assert "CONFIG" in done.stderr
    assert "Traceback" not in done.stderr


def test_init_writes_a_config_that_train_understands(command, tmp_path):
    config = tmp_path / "mine.yaml"
    assert command("init", config).returncode == 0
    dry = command("train", config, "--run-dir", tmp_path / "run", "--dry-run", "--set", "model.name=tiny")
    assert dry.returncode == 0, dry.stderr
    assert "Nothing was written" in dry.stdout
    refused(command("init", config), "exists already")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]


def test_dry_run_of_the_full_size_recipe_adds_up(command):
    recipe = TINY.parent / "gsm8k-qwen2.5-math-7b.yaml"
    done = command("train", recipe, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1,024 a round, 1,024,000 in all" in done.stdout
    assert "1 optimiser steps a round, 1,000 in all" in done.stdout
    assert "at most 2,097,152 generated a round" in done.stdout


def test_dry_run_of_bad_input_is_refused(command, tmp_path):
    refused(command("train", TINY, "--dry-run", "--set", "reward.name=nonsense"), "reward.name", "nonsense")
    refused(command("train", TINY, "--dry-run", "--set", "data.prompt_column=gone"), "data.prompt_column", "gone")


def test_brackets_in_a_message_are_no_markup(command):
    done = command("train", TINY, "--set", "data.prompt_template='[INST] x [/INST]'", FORCE_COLOR="1")
    assert done.returncode == 2
    assert "[/INST]" in done.stderr


def test_no_run_of_zero_rounds(command, finished_run):
    before = (finished_run / "config.yaml").read_bytes()
    assert command("resume", finished_run, "--rounds", "0").returncode == 2
    assert (finished_run / "config.yaml").read_bytes() == before


def test_score_prints_a_verdict_for_each_row(command, tmp_path):
    rows = [
        {"id": "a", "response": "so \\boxed{7}", "gold": "7"},
        {"id": "b", "response": "it is 8", "gold": "7"},
        {"response": "no idea", "gold": 7},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = command("score", tmp_path / "rows.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["id"], row["reward"], row["verdict"]) for row in found] == [
        ("a", 1.1, "ok"),
        ("b", 0.0, "wrong"),
        ("3", 0.0, "unparsable"),
    ]
    assert all(row["seconds"] >= 0 for row in found)


def test_score_takes_a_reward_of_ones_own(command, tmp_path):
    (tmp_path / "my_rewards.py").write_text(
        "def brief(samples):\n"
        "    return [None if not s.response else 1.0 if len(s.response) < 5 else 0.0 for s in samples]\n"
    )
    rows = [{"response": "hi", "gold": ""}, {"response": "a long one", "gold": ""}, {"response": "", "gold": ""}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = command("score", tmp_path / "rows.jsonl", "--reward", "my_rewards:brief", "--json", PYTHONPATH=str(tmp_path))
    assert [json.loads(line)["reward"] for line in done.stdout.splitlines()] == [1.0, 0.0, None]


def test_score_names_file_and_line_of_bad_rows(command, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"response": "1", "gold": "1"}\n{"response": "1"}\n')
    refused(command("score", tmp_path / "rows.jsonl"), "rows.jsonl:2", "gold")
    refused(command("score", tmp_path / "none.jsonl"), "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    refused(command("score", tmp_path / "empty.jsonl"), "empty.jsonl", "has no rows")


def test_doctor_names_device_and_engine(command):
    found = json.loads(command("doctor", "--json").stdout)
    assert found["engine"] == "transformers"
    assert found["device"] in ("cpu", "cuda")
    assert found["torch"].startswith("2.13")


def test_status_of_a_finished_run_has_every_stage_done(command, finished_run):
    found = json.loads(command("status", finished_run, "--json").stdout)
    assert found["rounds_done"] == found["rounds"] == 2
    assert {stage["state"] for stage in found["stages"]} == {"done"}
    assert len(found["stages"]) == 4 + 2 * 10


def test_evaluate_measures_a_policy_that_was_not_due(command, finished_run):
    done = command("evaluate", finished_run, "--round", 1, "--json")
    assert done.returncode == 0, done.stderr
    stored = json.loads((finished_run / "rounds/0001/evaluation/manifest.json").read_text())["metrics"]
    assert json.loads(done.stdout) == {"round": 1, **stored}
    refused(command("evaluate", finished_run, "--round", 7), "--round")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder_is_one_sentence(command, tmp_path):
    tmp_path.chmod(0o500)
    refused(command("train", TINY, "--run-dir", tmp_path / "run"), "can't be written")
