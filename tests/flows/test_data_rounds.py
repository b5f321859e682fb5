"""Rounds that choose their prompts: a band, dynamic sampling, and sources that join a run."""

import json
import signal

import pyarrow.parquet as pq
import pytest
from left_alone import train_here
from support import ROOT, TINY, digests

from grpo_core.config import load_config

BY_PROMPT = "reward.name=support:by_prompt"
QUICK = ("evaluation.every=99", "evaluation.samples=0", "update.epochs=1")
PATH = {"PYTHONPATH": str(ROOT / "tests")}


def sets(*overrides):
    return [word for override in overrides for word in ("--set", override)]


def metrics(run, number, artifact):
    return json.loads((run / f"rounds/{number:04d}/{artifact}/manifest.json").read_text())["metrics"]


def plan(run, number):
    return pq.read_table(run / f"rounds/{number:04d}/plan.parquet").to_pylist()


def prompts_of(run, number):
    shards = (run / f"rounds/{number:04d}/rollouts").glob("*.parquet")
    return {
        prompt for shard in shards for prompt in pq.read_table(shard, columns=["prompt_id"])["prompt_id"].to_pylist()
    }


@pytest.mark.slow
def test_a_band_spends_fewer_rollouts_on_groups_without_variance(tmp_path):
    shares = {}
    for name, band in (("with", "[0.1, 0.9]"), ("without", "null")):
        run = tmp_path / name
        train_here(run, load_config(TINY, [f"data.difficulty.band={band}", BY_PROMPT, *QUICK], rounds=5))
        # The first epoch, three rounds, finds out; the prompts are the same in both.
        shares[name] = [metrics(run, number, "advantages")["zero_variance_share"] for number in range(1, 6)]
    assert shares["with"][:3] == shares["without"][:3]
    late = {name: sum(values[3:]) / 2 for name, values in shares.items()}
    assert late["with"] < 0.5 * late["without"]


@pytest.mark.slow
def test_dynamic_sampling_fills_the_round_and_resumes_inside_it(command, tmp_path):
    more = ["data.dynamic_sampling.max_extra=2", "data.dynamic_sampling.min_live=0.5", BY_PROMPT, *QUICK]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_here(whole, load_config(TINY, more))
    for number in (1, 2):
        found = metrics(whole, number, "rollouts")
        drawn = [row for row in plan(whole, number) if row["reserve"]]
        extra = {row["prompt_id"] for row in drawn} & prompts_of(whole, number)
        assert len(extra) == found["extra_prompts"]
        # Shards of two prompts: what came before the last of them was not enough.
        assert found["is_full"] == 1.0 or len(extra) == len(drawn)
        assert found["live_groups"] - 2 < 3 or not extra
        # One file of rewards for each file of rollouts, by the same name.
        names = [{path.name for path in (whole / f"rounds/{number:04d}/{kind}").glob("*.parquet")} for kind in
                 ("rollouts", "rewards")]  # fmt: skip
        assert names[0] == names[1]
    assert metrics(whole, 1, "rollouts")["extra_prompts"] > 0
    # What the reserve did not give is not used up: it comes in its turn.
    later = {row["prompt_id"] for row in plan(whole, 2) if row["epoch"] == 0}
    assert not later & prompts_of(whole, 1)
    for fault in (
        "after-rename:rounds/0001/rollouts/shard-00003.parquet",
        "after-rename:rounds/0001/rollouts/manifest.json",
        "after-rename:rounds/0002/difficulty/prompts.parquet",
    ):
        dead = command("train", TINY, "--run-dir", killed, *sets(*more), fault=fault, **PATH)
        assert dead.returncode == -signal.SIGKILL, (fault, dead.stdout, dead.stderr)
    assert command("resume", killed, **PATH).returncode == 0
    assert digests(killed) == digests(whole)
    told = json.loads(command("status", killed, "--json", **PATH).stdout)
    assert {stage["state"] for stage in told["stages"]} == {"done"}
    assert "sample_groups" in {stage["stage"] for stage in told["stages"]}


@pytest.mark.long
@pytest.mark.slow
def test_a_source_that_joins_a_run_disturbs_no_round_of_it(command, tmp_path):
    rows = [{"question": f"Say {n}.", "answer": str(n)} for n in range(12)]
    more = tmp_path / "more.jsonl"
    more.write_text("".join(json.dumps(row) + "\n" for row in rows))
    addition = {"source": "additions", "additions": {"low": 0, "high": 4, "count": 25}}
    base = TINY.read_text()
    head, _, rest = base.partition("data:\n")
    _, _, tail = rest.partition("  prompts_per_round")

    def config(name, sources):
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"{head}data:\n  sources: {json.dumps(sources)}\n  prompts_per_round{tail}")
        return path

    run, fresh = tmp_path / "run", tmp_path / "fresh"
    train_here(run, load_config(TINY, list(QUICK)))
    before = digests(run)
    joined = config("joined", [addition, {"source": str(more), "name": "more"}])
    on = ("--rounds", "4", *sets(*QUICK))
    dry = command("train", joined, "--run-dir", run, *on, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "runs again" not in dry.stdout
    done = command("train", joined, "--run-dir", run, *on)
    assert done.returncode == 0, done.stdout + done.stderr
    after = digests(run)
    evaluations = {name for name in before if "rounds/0002/evaluation" in name or "rounds/0002/promotion" in name}
    assert {name: after[name] for name in before.keys() - evaluations} == {
        name: before[name] for name in before.keys() - evaluations
    }
    assert "prompts-0003/manifest.json" in after
    sources = {row["prompt_id"]: row["source"] for row in pq.read_table(run / "prompts-0003/train.parquet").to_pylist()}
    assert set(sources.values()) == {"more"}
    taken = {number: {row["prompt_id"] for row in plan(run, number)} for number in range(1, 5)}
    assert not sources.keys() & (taken[1] | taken[2])
    assert sources.keys() & (taken[3] | taken[4])
    line = json.loads((run / "config-changes.jsonl").read_text().splitlines()[-1])
    assert line["changed"]["data.sources"][1][1]["from_round"] == 3
    # The same command again changes nothing, and a new run with the round written out ends with the same bytes.
    again = command("train", joined, "--run-dir", run, *on)
    assert "changed:" not in again.stdout
    written = config("written", [addition, {"source": str(more), "name": "more", "from_round": 3}])
    train_here(fresh, load_config(written, list(QUICK), rounds=4))
    # The round in which the run ended for a while was evaluated for that, and later decisions name it in their keys.
    ended = {name for name in after if "/promotion/" in name} | evaluations
    found = digests(fresh)
    assert {name: found[name] for name in after.keys() - ended} == {name: after[name] for name in after.keys() - ended}
