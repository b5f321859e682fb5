"""Questions to a run of two rounds whose answers can be counted by hand."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_run import store_run
from support import ROOT

from grpo_core.artifacts import ArtifactWriter
from grpo_core.audit.ask import Question, ask
from grpo_core.audit.files import STEPS
from grpo_core.errors import UserError
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import ADVANTAGES, EVALUATION, PLAN, PROMPTS, REJECTED, REWARDS
from grpo_core.storage import Store
from tasks.run import Run

TEXTS = {
    1: {"aa": ["one", "two", "three"], "ab": ["four", "five", "six"]},
    2: {"aa": ["42", "seven", "eight"], "c": ["nine", "ten", "eleven"]},
    3: {"c": ["later", "on"]},
}
# round -> prompt -> (verdict, reward, advantage) of each sample
SCORES: dict[int, dict[str, list[tuple[str, float | None, float]]]] = {
    1: {
        "aa": [("ok", 1.0, 1.5), ("wrong", 0.0, -0.75), ("wrong", 0.0, -0.75)],
        "ab": [("timeout", None, 0.0), ("wrong", 0.0, 0.0), ("unparsable", 0.0, 0.0)],
    },
    2: {
        "aa": [("ok", 1.0, 0.5), ("ok", 1.0, 0.5), ("wrong", 0.0, -2.0)],
        "c": [("wrong", 0.0, 0.0), ("wrong", 0.0, 0.0), ("wrong", 0.0, 0.0)],
    },
}


def write(run: Run, place: str, **tables: pa.Table) -> None:
    writer = ArtifactWriter(run.artifact(place), Fingerprint("test", 0, 1, {}, {}))
    for name, table in tables.items():
        writer.write_table(f"{name}.parquet", table)
    writer.finish()


def scored(number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rewards, advantages = [], []
    for prompt, scores in SCORES[number].items():
        valid = [reward for _, reward, _ in scores if reward is not None]
        for sample, (verdict, reward, advantage) in enumerate(scores):
            key = {
                "rollout_id": f"{number:04d}/{prompt}/{sample}",
                "round": number,
                "prompt_id": prompt,
                "sample_index": sample,
                "reward": reward,
            }
            rewards.append(
                key | {"verdict": verdict, "extracted": "x", "gold": "42", "components": [("part", 0.5)], "detail": ""}
            )
            advantages.append(
                key
                | {
                    "group_size": 3,
                    "group_valid": len(valid),
                    "group_mean": sum(valid) / len(valid),
                    "group_std": 0.5,
                    "zero_variance": len(set(valid)) == 1,
                    "advantage": advantage,
                    "in_loss": len(set(valid)) > 1,
                    "rank": 0.25,
                }
            )
    return rewards, advantages


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("asked") / "run"
    run = store_run(folder, TEXTS)
    held = [
        {"prompt_id": "e", "source": "set:b", "source_row": 9, "prompt": "e?", "gold": "1", "prompt_ids": [1]}
    ]  # fmt: skip
    rejected = [{"source": "s", "source_row": 7, "prompt": "long", "gold": "1", "reason": "too_long", "detail": "99"}]
    train = pa.Table.from_pylist(
        [
            {"prompt_id": p, "source": "s", "source_row": n, "prompt": f"{p}?", "gold": "42", "prompt_ids": [1, 2]}
            for n, p in enumerate(("aa", "ab"))
        ],
        schema=PROMPTS,
    )
    pool = pa.Table.from_pylist(
        [
            {"prompt_id": "c", "source": "set:b", "source_row": 2, "prompt": "c?", "gold": "42", "prompt_ids": [1, 2]},
            {"prompt_id": "aa", "source": "set:b", "source_row": 3, "prompt": "aa?", "gold": "42", "prompt_ids": [1]},
        ],
        schema=PROMPTS,
    )
    write(
        run,
        "prompts",
        train=train,
        eval=pa.Table.from_pylist(held, schema=PROMPTS),
        rejected=pa.Table.from_pylist(rejected, schema=REJECTED),
    )
    write(run, "prompts-0002", train=pool)
    for number in SCORES:
        rewards, advantages = scored(number)
        write(run, f"rounds/{number:04d}/rewards", **{"shard-00000": pa.Table.from_pylist(rewards, schema=REWARDS)})
        # Only the second round's estimator ranks, and nobody has tiers.
        known = [f for f in ADVANTAGES if f.name not in (("rank", "tier") if number == 1 else ("tier",))]
        table = pa.Table.from_pylist(advantages, schema=pa.schema(known))
        write(run, f"rounds/{number:04d}/advantages", **{"shard-00000": table})
    plan = pa.Table.from_pylist(
        [{"position": 0, "prompt_id": "aa", "epoch": 0, "turn": "epoch", "reserve": False}], schema=PLAN
    )
    write(run, "rounds/0002/plan.parquet", plan=plan)
    answer = {
        "prompt_id": "e", "mode": "greedy", "sample_index": 0, "completion_ids": [1], "text": "1",
        "finish_reason": "stop", "verdict": "ok", "extracted": "1", "gold": "1", "reward": 1.0,
    }  # fmt: skip
    write(run, "rounds/0002/evaluation", evaluation=pa.Table.from_pylist([answer], schema=EVALUATION))
    steps = [
        {"rollout_id": f"0001/aa/{s}", "round": 1, "prompt_id": "aa", "sample_index": s, "optimizer_step": step,
         "trainer_step": step, "tokens": 3, "gradient_share": share, "clipped_tokens": 0}
        for s, step, share in ((0, 1, 0.75), (1, 1, 0.25), (0, 2, 1.0))
    ]  # fmt: skip
    write(run, "rounds/0001/steps", steps=pa.Table.from_pylist(steps, schema=STEPS))
    labels = pa.table(
        {"rollout_id": ["0001/aa/0", None], "prompt_id": ["aa", "aa"], "round": pa.array([1, None], pa.int32()),
         "kind": ["correct", "ambiguous"], "value": ["no", "yes"], "who": ["ann", "bob"]}
    )  # fmt: skip
    (folder / "rounds/0001/labels").mkdir()
    pq.write_table(labels, folder / "rounds/0001/labels/labels.parquet")
    return run


def answer(run: Run, **question: Any) -> dict[str, Any]:
    found = ask(Store(run.uri), Question(**question))
    json.dumps(found, allow_nan=False)
    return found


def ids(found: dict[str, Any]) -> list[str]:
    return [row["rollout_id"] for row in found["rows"]]


def test_a_row_a_round(run: Run) -> None:
    one, two, three = answer(run)["rows"]
    assert (one["rollouts"], one["verdicts"]) == (6, {"ok": 1, "timeout": 1, "unparsable": 1, "wrong": 3})
    assert one["reward_mean"] == pytest.approx(1 / 5)  # a timeout is no zero
    assert (one["zero_variance_share"], one["in_loss"]) == (0.5, 3)
    assert two["reward_mean"] == pytest.approx(2 / 6)
    assert (three["round"], three["rollouts"], three["verdicts"]) == (3, 2, {"unscored": 2})
    assert three["reward_mean"] is None
    assert [row["round"] for row in answer(run, rounds="2-3")["rows"]] == [2, 3]


def test_filters_must_all_be_true(run: Run) -> None:
    assert ids(answer(run, verdict="timeout")) == ["0001/ab/0"]
    assert ids(answer(run, verdict="ok", rounds="2")) == ["0002/aa/0", "0002/aa/1"]
    assert ids(answer(run, prompt="aa", verdict="wrong")) == ["0001/aa/1", "0001/aa/2", "0002/aa/2"]
    assert ids(answer(run, verdict="unscored")) == ["0003/c/0", "0003/c/1"]
    assert ids(answer(run, source="set:b:2", rounds="2")) == ["0002/c/0", "0002/c/1", "0002/c/2"]
    assert ids(answer(run, source="s", verdict="ok", prompt="ab")) == []
    limited = answer(run, verdict="wrong", limit=2)
    assert (limited["total"], len(limited["rows"])) == (7, 2)


def test_worst_and_best_go_by_reward_then_advantage(run: Run) -> None:
    worst = answer(run, worst=3)
    assert ids(worst) == ["0002/aa/2", "0001/aa/1", "0001/aa/2"]
    assert worst["total"] == 11  # the timeout and the unscored have no reward to be the worst by
    assert ids(answer(run, best=2)) == ["0001/aa/0", "0002/aa/0"]
    assert ids(answer(run, best=1, rounds="2", verdict="wrong")) == ["0002/c/0"]


def test_a_row_of_the_view_joins_all_tables(run: Run) -> None:
    (row,) = answer(run, verdict="timeout")["rows"]
    assert (row["prompt"], row["source"], row["source_row"], row["text"]) == ("ab?", "s", 1, "four")
    assert (row["reward"], row["advantage"], row["in_loss"], row["tokens"]) == (None, 0.0, False, 4)
    assert row["components"] == {"part": 0.5}
    assert row["finish_reason"] == "stop"


def test_a_prompt_in_two_pools_doubles_nothing(run: Run) -> None:
    found = answer(run, sql="select count(*) as n, any_value(source) as source from audit where prompt_id = 'aa'")
    assert found["rows"] == [{"n": 6, "source": "s"}]
    pools = answer(run, sql="select pool, count(*) as n from prompts group by 1 order by 1")
    assert pools["rows"] == [{"pool": "prompts", "n": 2}, {"pool": "prompts-0002", "n": 2}]


def test_all_of_one_rollout(run: Run) -> None:
    found = answer(run, rollout="0001/aa/0")
    assert (found["text"], found["source_row"], found["advantage"]) == ("one", 0, 1.5)
    assert found["advantage_row"]["group_mean"] == pytest.approx(1 / 3)
    assert [row["verdict"] for row in found["group"]] == ["ok", "wrong", "wrong"]
    assert [(s["optimizer_step"], s["gradient_share"]) for s in found["steps"]] == [(1, 0.75), (2, 1.0)]
    assert {(label["kind"], label["who"]) for label in found["labels"]} == {("correct", "ann"), ("ambiguous", "bob")}
    assert found["sampling"]["logprob_mean"] == -1.0
    later = answer(run, rollout="0003/c/1")
    assert (later["verdict"], later["advantage_row"], later["steps"]) == (None, None, [])
    assert answer(run, rollout="0002/aa/0")["advantage_row"]["rank"] == 0.25


def test_a_step_and_its_rollouts_by_share(run: Run) -> None:
    found = answer(run, step="1:1")
    assert [(row["rollout_id"], row["gradient_share"], row["verdict"]) for row in found["rows"]] == [
        ("0001/aa/0", 0.75, "ok"),
        ("0001/aa/1", 0.25, "wrong"),
    ]


def test_from_a_source_row_to_its_fate_and_rollouts(run: Run) -> None:
    assert [fate["fate"] for fate in answer(run, source="s")["fates"]] == ["train", "train", "rejected"]
    by_prompt = {row["prompt_id"]: row for row in answer(run, source="s")["rows"]}
    assert by_prompt["aa"]["solved"] == 0.5
    assert by_prompt["ab"]["solved"] == 0.0  # the timeout is no finding
    gone = answer(run, source="s:7")
    assert (gone["fates"][0]["reason"], gone["rows"]) == ("too_long", [])
    held = answer(run, source="set:b:9")
    assert [(a["round"], a["verdict"]) for a in held["answers"]] == [(2, "ok")]
    assert answer(run, source="b:2")["source"] == "set:b"  # the end of a name is enough
    assert answer(run, prompt="e")["answers"][0]["text"] == "1"


def test_tables_that_a_run_lacks_are_empty_and_rounds_come_from_folders(run: Run) -> None:
    assert answer(run, sql="select * from groups")["rows"] == []
    assert "tier" in answer(run, sql="select * from groups")["columns"]
    assert answer(run, sql="select round, prompt_id from plan")["rows"] == [{"round": 2, "prompt_id": "aa"}]
    ranks = answer(run, sql="select round, max(rank) as r, max(tier) as t from advantages group by 1 order by 1")
    assert ranks["rows"] == [{"round": 1, "r": None, "t": None}, {"round": 2, "r": 0.25, "t": None}]
    assert answer(run, sql="select file from evaluation")["rows"] == [
        {"file": "rounds/0002/evaluation/evaluation.parquet"}
    ]


def test_sql_is_cut_and_says_so(run: Run) -> None:
    found = answer(run, sql="select rollout_id, rollout_id from rewards order by 1", limit=2)
    assert (found["columns"], found["more"], len(found["rows"])) == (["rollout_id", "rollout_id_1"], True, 2)
    assert answer(run, sql="select 'nan'::double as x, 1.5::decimal as y")["rows"] == [{"x": None, "y": 1.5}]
    views = answer(run, sql="show tables")["rows"]
    assert {"audit", "rollouts", "rewards", "steps", "labels", "held_out"} <= {row["name"] for row in views}


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select nope from audit", "nope.*tables: audit"),
        ("selec 1", "syntax error"),
        ("select 1; select 2", "one statement that reads"),
        ("copy (select 1) to 'OUT/x.csv'", "one statement that reads"),
        ("copy (select 1) to 'RUN/rounds/0001/rewards/shard-00000.parquet' (use_tmp_file false)", "one statement"),
        ("explain analyze copy (select 1) to 'RUN/x.csv' (use_tmp_file false)", "one statement that reads"),
        ("select * from query('copy (select 1) to ''RUN/x.csv'' (use_tmp_file false)')", "SELECT"),
        ("create table t as select 1", "one statement that reads"),
        ("insert into rewards select * from rewards", "one statement that reads"),
        ("set enable_external_access = true", "one statement that reads"),
        ("attach 'OUT/x.db'", "one statement that reads"),
        ("select * from read_text('OUT/secret')", "disabled by configuration"),
        ("select * from read_text('RUN/../secret')", "disabled by configuration"),
        ("select * from glob('OUT/*')", "disabled by configuration"),
        ("select * from 'OUT/secret'", "secret"),
        ("", "one statement that reads"),
    ],
)
def test_sql_reads_the_run_and_nothing_else(run: Run, sql: str, words: str) -> None:
    outside = Path(run.uri).parent
    (outside / "secret").write_text("secret")
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=words) as error:
        answer(run, sql=sql.replace("OUT", str(outside)).replace("RUN", run.uri))
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before


def test_the_examples_of_the_docs_are_answered(run: Run) -> None:
    block = (ROOT / "docs/audit.md").read_text().partition("```sql\n")[2].partition("```")[0]
    examples = [text.strip() for text in block.split(";") if text.strip()]
    assert len(examples) == 7
    found = [answer(run, sql=sql)["rows"] for sql in examples]
    assert [row["prompt_id"] for row in found[0]] == ["c", "ab"]
    assert [(row["rollout_id"], row["share"]) for row in found[-1]] == [("0001/aa/0", 1.75), ("0001/aa/1", 0.25)]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"verdict": "good"}, "--verdict 'good' is none; it can be ok, wrong"),
        ({"rounds": "x"}, "--round 'x' is no range"),
        ({"rounds": "3-2"}, "--round '3-2' is no range"),
        ({"rounds": "9"}, "has rounds 1 to 3; round 9 lies outside"),
        ({"prompt": "zz"}, "--prompt 'zz': .* has none"),
        ({"prompt": "a"}, r"--prompt 'a' stands for several \(aa, ab\)"),
        ({"rollout": "0001/aa"}, "stands for several"),
        ({"rollout": "0009/aa/0"}, "round 9 lies outside"),
        ({"rollout": "nothing"}, "has none"),
        ({"source": "t"}, "the run's sources are s, set:b"),
        ({"source": "s:99"}, "row 99 of 's' is not in the run"),
        ({"step": "1"}, "write it as ROUND:STEP"),
        ({"step": "1:9"}, "round 1 has steps 1 to 2"),
        ({"step": "2:1"}, "has no steps.parquet"),
        ({"worst": 1, "best": 1}, "leave one out"),
        ({"sql": "select 1", "rounds": "1"}, "--sql stands alone; leave out --round"),
        ({"rollout": "a", "step": "1:1"}, "--rollout stands alone; leave out --step"),
    ],
)
def test_a_bad_question_is_one_sentence(run: Run, question: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        answer(run, **question)


def test_what_is_unfinished_or_unreadable_is_not_shown(run: Run, tmp_path: Path) -> None:
    copy = store_run(tmp_path / "run", TEXTS)
    rounds = tmp_path / "run/rounds"
    (rounds / "0002/rollouts/manifest.json").unlink()
    (rounds / "0003/rollouts/manifest.json").write_text("{")
    found = answer(copy)
    assert [row["round"] for row in found["rows"]] == [1]
    assert found["notes"] == ["rounds/0003/rollouts is left out: its manifest can't be read."]


def test_a_shard_that_is_gone_or_no_parquet_is_told(run: Run, tmp_path: Path) -> None:
    copy = store_run(tmp_path / "run", TEXTS)
    shard = tmp_path / "run/rounds/0002/rollouts/shard-00001.parquet"
    for harm in (lambda: shard.write_bytes(b"PAR1 and no more"), shard.unlink):
        harm()
        for question in ({}, {"prompt": "c"}):
            with pytest.raises(UserError, match=r"can't be read .*audit verify") as error:
                answer(copy, **question)
            assert "\n" not in str(error.value)


def test_a_remote_run_answers_the_same(run: Run) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(run.uri, "/asked/run", recursive=True)
    try:
        for question in ({}, {"worst": 3}, {"rollout": "0001/aa/0"}, {"sql": "select count(*) from audit"}):
            there = ask(Store("memory://asked/run"), Question(**question))
            here = ask(Store(run.uri), Question(**question))
            assert {**there, "run": ""} == {**here, "run": ""}
        with pytest.raises(UserError, match="disabled by configuration"):
            ask(Store("memory://asked/run"), Question(sql=f"select * from read_text('{run.uri}/config.yaml')"))
    finally:
        memory.rm("/asked", recursive=True)


def test_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        ask(Store(str(tmp_path)), Question())
