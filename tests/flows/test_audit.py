"""``audit`` and ``audit verify`` as a user types them."""

import io
import json
from pathlib import Path

import pytest
from harmed import copy_run, mend, set_cell
from rich.console import Console

from flows.audit_tables import print_answer, safe


def test_a_run_by_round_and_deeper(command, finished_run):
    done = command("audit", finished_run)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["round", "rollouts"]
    assert [line.split()[:2] for line in lines[1:3]] == [["1", "48"], ["2", "48"]]
    assert f"grpo-rounds audit verify {finished_run}" in done.stdout
    assert command("audit", "--worst", "3", finished_run).stdout == command("audit", finished_run, "--worst", 3).stdout


def test_from_a_rollout_to_its_source_row_and_back(command, finished_run):
    worst = json.loads(command("audit", finished_run, "--worst", "1", "--json").stdout)["rows"][0]
    one = command("audit", finished_run, "--rollout", worst["rollout_id"])
    assert one.returncode == 0, one.stderr
    assert f"Row {worst['source_row']} of additions, prompt {worst['prompt_id']}" in one.stdout
    assert "Optimiser steps that it moved" in one.stdout
    row = command("audit", finished_run, "--source", f"additions:{worst['source_row']}", "--json")
    answer = json.loads(row.stdout)
    assert answer["fates"][0]["fate"] == "train"
    assert worst["rollout_id"] in {found["rollout_id"] for found in answer["rows"]}
    shown = command("audit", finished_run, "--prompt", worst["prompt_id"])
    assert worst["rollout_id"] in shown.stdout


def test_sql_and_json(command, finished_run):
    sql = "select verdict, count(*) as n from audit group by 1 order by 2 desc"
    told = json.loads(command("audit", finished_run, "--sql", sql, "--json").stdout)
    assert sum(row["n"] for row in told["rows"]) == 96
    shown = command("audit", finished_run, "--sql", sql)
    assert shown.stdout.splitlines()[0].split() == ["verdict", "n"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--verdict", "good"], "--verdict 'good'"),
        (["--sql", "select nope from audit"], "nope"),
        (["--sql", "copy (select 1) to 'x.csv'"], "one statement that reads"),
        (["--round", "7"], "rounds 0 to 2"),
        (["--step", "1"], "ROUND:STEP"),
    ],
)
def test_a_bad_filter_is_one_sentence(command, finished_run, arguments, named):
    done = command("audit", finished_run, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert named in done.stderr


def test_no_run_and_no_words(command, tmp_path):
    for words in (["audit", tmp_path], ["audit", "verify", tmp_path]):
        done = command(*words)
        assert (done.returncode, "holds no run" in done.stderr) == (2, True)
    assert command("audit").returncode == 2
    assert "--worst" in command("audit", "--help").stdout
    assert "--no-rewards" in command("audit", "verify", "--help").stdout


def test_verify_ends_with_0_only_when_nothing_differs(command, finished_run, tmp_path):
    clean = command("audit", "verify", finished_run)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    assert "Nothing differs" in clean.stdout.replace("\n", " ")

    harmed = copy_run(finished_run, tmp_path / "copy")
    for row in range(8):
        was = set_cell(harmed / "rounds/0002/advantages/shard-00000.parquet", row, "advantage", 4.25)
    mend(harmed, "rounds/0002/advantages")
    found = command("audit", "verify", harmed, "--rounds", "2", "--no-mlflow")
    assert found.returncode == 1, found.stdout + found.stderr
    said = (
        f"rounds/0002/advantages {was['rollout_id'][:-1]}0 advantage: computed again it is another one (stored 4.25, "
    )
    assert said in found.stdout
    assert "and 3 more of that kind in rounds/0002/advantages; --json names them all" in found.stdout
    told = json.loads(command("audit", "verify", harmed, "--no-mlflow", "--json").stdout)
    assert sum(d["column"] == "advantage" for d in told["differences"]) == 8
    assert told["clean"] is False


def test_what_a_policy_wrote_cannot_steer_the_terminal():
    assert safe("a\x1b[2Jb\u202e\r") == "a\\x1b[2Jb\\x202e\\x0d"
    assert safe("[red]x[/]\n y", 5) == "[red…"
    out = Console(file=io.StringIO(), width=80)
    row = {"text": "\x1b]0;owned\x07 [bold]"}
    print_answer({"kind": "sql", "columns": ["text"], "rows": [row], "more": False, "notes": []}, "run", out)
    told = out.file.getvalue()
    assert "\x1b]" not in told
    assert "[bold]" in told


def test_steps_and_labels_are_shown_with_a_rollout(finished_run, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from grpo_core.audit.ask import Question, ask
    from grpo_core.storage import Store

    run = copy_run(finished_run, tmp_path / "copy")
    answer = ask(Store(str(run)), Question(best=1))
    key = {name: [answer["rows"][0][name]] for name in ("rollout_id", "round", "prompt_id", "sample_index")}
    place = Path(run, f"rounds/{key['round'][0]:04d}")
    (place / "steps").mkdir(exist_ok=True)
    (place / "labels").mkdir(exist_ok=True)
    for file in [*(place / "steps").iterdir(), *(place / "labels").iterdir()]:
        file.unlink()
    step = key | {"optimizer_step": [2], "tokens": [16], "gradient_share": [0.125], "clipped_tokens": [1]}
    pq.write_table(pa.table(step), place / "steps/steps.parquet")
    label = {"rollout_id": key["rollout_id"], "prompt_id": key["prompt_id"], "kind": ["correct"], "who": ["ann"]}
    pq.write_table(pa.table(label), place / "labels/labels.parquet")
    for question, words in (
        (Question(rollout=key["rollout_id"][0]), ["12.50%", "kind correct, who ann", "--step"]),
        (Question(step=f"{key['round'][0]}:2"), ["12.50%", key["rollout_id"][0], "1 of 1"]),
    ):
        out = Console(file=io.StringIO(), width=120)
        print_answer(ask(Store(str(run)), question), str(run), out)
        assert [word for word in words if word not in out.file.getvalue()] == []
