"""Verification: a run that was harmed, in each way and with its tracks covered, is named; one left alone is clean."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harmed import copy_run, edit_rows, mend, set_cell
from stored_run import store_run
from support import digests

from flows.stages import stages_of
from grpo_core.artifacts import Artifact, ArtifactWriter
from grpo_core.errors import UserError
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import REWARDS
from grpo_core.storage import Store
from tasks.run import open_run
from tasks.verify import verify_run
from tasks.verify_again import recompute_sure
from tasks.verify_report import Difference, Report

SHARD = "shard-00001.parquet"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return copy_run(finished_run, tmp_path / "copy")


def verify(run: Path, **arguments: Any) -> Report:
    return verify_run(open_run(str(run)), lambda r, n: [stage for _, stage in stages_of(r, n)], **arguments)


def on_disk(run: Path) -> list[Difference]:
    return verify(run, rewards=False, mlflow=False).differences


def told(differences: list[Difference]) -> set[tuple[str, str, str, str]]:
    return {(d.where, d.what, d.row, d.column) for d in differences}


def test_a_run_left_alone_is_clean_and_stays_as_it_is(run: Path) -> None:
    before = digests(run), sorted(run.rglob("*")), (run.parent / "mlflow.db").read_bytes()
    seen: list[tuple[int, int]] = []
    report = verify(run, progress=lambda done, total: seen.append((done, total)))
    assert report.differences == []
    assert report.unfinished == []
    assert (digests(run), sorted(run.rglob("*")), (run.parent / "mlflow.db").read_bytes()) == before
    counts = report.checked
    assert counts["rollouts"] == counts["rewards"] == counts["advantages"] == 96
    assert counts["rewards computed again"] == counts["advantages computed again"] == 96
    assert (counts["plan computed again"], counts["evaluation computed again"]) == (12, 54)
    assert counts["MLflow files"] > 30
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_what_was_altered_is_named_though_the_manifests_were_mended(run: Path) -> None:
    """Several harms at once, each in a place of its own."""
    rounds = run / "rounds"
    paid = set_cell(rounds / "0001/rewards" / SHARD, 3, "reward", 0.75)
    mend(run, "rounds/0001/rewards")
    shifted = set_cell(rounds / "0002/advantages" / SHARD, 5, "advantage", 1.5)
    mend(run, "rounds/0002/advantages")
    answered = set_cell(rounds / "0002/evaluation/evaluation.parquet", 2, "verdict", "ok")
    mend(run, "rounds/0002/evaluation")
    differences = verify(run).differences
    by_place = {(d.where, d.row, d.column): d for d in differences}

    found = by_place["rounds/0001/rewards", paid["rollout_id"], "reward"]
    assert (found.what, found.stored, found.found) == ("computed again it is another one", 0.75, paid["reward"])
    assert by_place["rounds/0001/advantages", "", "rewards"].what == "it was made from another input than lies there"
    mismatch = ("rounds/0001/advantages", "its reward is not that of the rewards", paid["rollout_id"], "reward")
    assert mismatch in told(differences)
    assert by_place["MLflow round-0001", "", f"rewards/{SHARD}"].what == "a file has other bytes than on disk"
    assert by_place["MLflow round-0001", "", "rollouts_table.json"].what.startswith("the table of rollouts says")
    # Its group's statistics move with it.
    assert ("rounds/0001/advantages", f"{paid['rollout_id'][:-1]}0", "group_mean") in by_place

    found = by_place["rounds/0002/advantages", shifted["rollout_id"], "advantage"]
    assert (found.stored, found.found) == (1.5, shifted["advantage"])
    assert by_place["rounds/0002/policy", "", "advantages"].what == "it was made from another input than lies there"

    name = f"{answered['prompt_id']}/{answered['mode']}/{answered['sample_index']}"
    found = by_place["rounds/0002/evaluation", name, "verdict"]
    assert (found.stored, found.found) == ("ok", answered["verdict"])


def test_an_altered_text_gets_another_verdict(run: Path) -> None:
    before = set_cell(run / "rounds/0001/rollouts" / SHARD, 0, "text", "\\boxed{1000003}")
    mend(run, "rounds/0001/rollouts")
    found = told(verify(run, mlflow=False).differences)
    what = "computed again it is another one"
    assert ("rounds/0001/rewards", what, before["rollout_id"], "extracted") in found
    assert ("rounds/0001/rewards", "it was made from another input than lies there", "", "rollouts") in found


def swap_shards(run: Path) -> set[tuple[str, str, str, str]]:
    one, other = (run / "rounds/0001/rollouts" / f"shard-0000{n}.parquet" for n in (0, 1))
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)
    what = "a file has other bytes than its manifest says"
    return {("rounds/0001/rollouts", what, "", one.name), ("rounds/0001/rollouts", what, "", other.name)}


def shard_of_another_round(run: Path) -> set[tuple[str, str, str, str]]:
    shutil.copy(run / "rounds/0001/rewards" / SHARD, run / "rounds/0002/rewards" / SHARD)
    mend(run, "rounds/0002/rewards")
    key = first_row(run / "rounds/0001/rewards" / SHARD)["rollout_id"]
    return {
        ("rounds/0002/rewards", "a row is of another round", key, "round"),
        ("rounds/0002/rewards", "a row that the rollouts don't have", key, ""),
    }


def first_row(file: Path) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    edit_rows(file, lambda found: rows.extend(found) or found)
    return rows[0]


def drop_rollout_everywhere(run: Path) -> set[tuple[str, str, str, str]]:
    key = first_row(run / "rounds/0001/rollouts" / SHARD)["rollout_id"]
    for table in ("rollouts", "rewards", "advantages"):
        edit_rows(run / "rounds/0001" / table / SHARD, lambda rows: rows[1:])
        mend(run, f"rounds/0001/{table}", rows=47)
    return {("rounds/0001/rollouts", "a group is not whole", key.rpartition("/")[0], "sample_index")}


def drop_reward(run: Path) -> set[tuple[str, str, str, str]]:
    key = first_row(run / "rounds/0001/rewards" / SHARD)["rollout_id"]
    edit_rows(run / "rounds/0001/rewards" / SHARD, lambda rows: rows[1:])
    mend(run, "rounds/0001/rewards")
    return {
        ("rounds/0001/rewards", "a row of the rollouts is missing", key, ""),
        ("rounds/0001/advantages", "a row that the rewards don't have", key, ""),
        ("rounds/0001/rewards", "its files have another number of rows than its manifest says", "", ""),
    }


def repeat_row(run: Path) -> set[tuple[str, str, str, str]]:
    file = run / "rounds/0002/rollouts" / SHARD
    key = first_row(file)["rollout_id"]
    edit_rows(file, lambda rows: [rows[0], *rows])
    mend(run, "rounds/0002/rollouts", rows=49)
    return {("rounds/0002/rollouts", "two rows have the same key", key, "rollout_id")}


def alter_seed_policy_and_ids(run: Path) -> set[tuple[str, str, str, str]]:
    file = run / "rounds/0002/rollouts" / SHARD
    key = set_cell(file, 0, "seed", 7)["rollout_id"]
    set_cell(file, 0, "policy_digest", "0" * 64)
    set_cell(file, 0, "prompt_ids", [1])
    mend(run, "rounds/0002/rollouts")
    return {
        ("rounds/0002/rollouts", "its seed is not the one that the run gives it", key, "seed"),
        ("rounds/0002/rollouts", "another policy wrote it than the round starts from", key, "policy_digest"),
        ("rounds/0002/rollouts", "its prompt_ids is not the prompt's", key, "prompt_ids"),
    }


def alter_gold(run: Path) -> set[tuple[str, str, str, str]]:
    row = first_row(run / "rounds/0001/rewards" / SHARD)
    edit_rows(
        run / "prompts/train.parquet",
        lambda rows: [r | {"gold": "99"} if r["prompt_id"] == row["prompt_id"] else r for r in rows],
    )
    mend(run, "prompts")
    return {
        ("rounds/0001/rewards", "its gold is not the prompt's", row["rollout_id"], "gold"),
        ("rounds/0001/rollouts", "it was made from another input than lies there", "", "prompts"),
    }


def alter_plan(run: Path) -> set[tuple[str, str, str, str]]:
    planned = set_cell(run / "rounds/0002/plan.parquet", 0, "prompt_id", "f" * 16)
    mend(run, "rounds/0002/plan.parquet")
    prompt = planned["prompt_id"]
    return {
        ("rounds/0002/plan.parquet", "computed again it is another one", str(planned["position"]), "prompt_id"),
        ("rounds/0002/rollouts", "a prompt has rollouts that were not planned", f"0002/{prompt}", ""),
        ("rounds/0002/rollouts", "a planned prompt has no rollouts", f"0002/{'f' * 16}", ""),
    }


def alter_metric(run: Path) -> set[tuple[str, str, str, str]]:
    manifest = Artifact(Store(str(run)), "rounds/0001/advantages").manifest()
    assert manifest is not None
    mend(run, "rounds/0001/advantages", metrics={**manifest.metrics, "zero_variance_share": 0.5})
    what = "a metric in the manifest is another one computed again"
    return {("rounds/0001/advantages", what, "", "zero_variance_share")}


def alter_manifest(run: Path) -> set[tuple[str, str, str, str]]:
    file = run / "rounds/0001/policy/manifest.json"
    file.write_text(file.read_text().replace('"finished_at": 1', '"finished_at": 2'))
    return {("rounds/0001/policy", "its manifest has other bytes than were written", "", "")}


def alter_parts(run: Path) -> set[tuple[str, str, str, str]]:
    manifest = Artifact(Store(str(run)), "rounds/0001/rollouts").manifest()
    assert manifest is not None
    mend(run, "rounds/0001/rollouts", parts={**manifest.parts, "version": 1})
    return {("rounds/0001/rollouts", "its manifest's fingerprint is not that of its parts", "", "")}


def alter_config(run: Path) -> set[tuple[str, str, str, str]]:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("learning_rate: 0.001", "learning_rate: 0.002"))
    what = "it was made otherwise than the run would now: config update.learning_rate"
    return {(f"rounds/{n}/{kind}", what, "", "") for n in ("0001", "0002") for kind in ("policy", "trainer_state")}


def lose_artifact(run: Path) -> set[tuple[str, str, str, str]]:
    shutil.rmtree(run / "rounds/0001/rewards")
    return {
        ("rounds/0001/rewards", "it is missing, though later artifacts lie there", "", ""),
        ("rounds/0001/advantages", "what it was made from is missing", "", "rounds/0001/rewards"),
    }


def lose_round(run: Path) -> set[tuple[str, str, str, str]]:
    shutil.rmtree(run / "rounds/0001")
    missing = "it is missing, though later artifacts lie there"
    return {(f"rounds/0001/{name}", missing, "", "") for name in ("plan.parquet", "rollouts", "rewards", "policy")}


def lose_and_add_files(run: Path) -> set[tuple[str, str, str, str]]:
    (run / "rounds/0001/rewards/monitor.json").unlink()
    shutil.copy(run / "rounds/0001/rewards" / SHARD, run / "rounds/0001/rewards/shard-00099.parquet")
    (run / "rounds/0002/notes.txt").write_text("mine")
    (run / "rounds/0002/policy/more").mkdir()
    (run / "rounds/0002/policy/more/notes.txt").write_text("mine")
    foreign = "a file that no manifest names"
    return {
        ("rounds/0001/rewards", "a file is gone", "", "monitor.json"),
        ("rounds/0001/rewards", foreign, "", "shard-00099.parquet"),
        ("rounds/0002", foreign, "", "notes.txt"),
        ("rounds/0002/policy/more", foreign, "", "notes.txt"),
    }


def destroy_shard(run: Path) -> set[tuple[str, str, str, str]]:
    (run / "rounds/0001/rewards" / SHARD).write_bytes(b"no parquet at all")
    return {("rounds/0001/rewards", "a file has other bytes than its manifest says", "", SHARD)}


HARMS: list[Callable[[Path], set[tuple[str, str, str, str]]]] = [
    swap_shards,
    shard_of_another_round,
    drop_rollout_everywhere,
    drop_reward,
    repeat_row,
    alter_seed_policy_and_ids,
    alter_gold,
    alter_plan,
    alter_metric,
    alter_manifest,
    alter_parts,
    alter_config,
    lose_artifact,
    lose_round,
    lose_and_add_files,
    destroy_shard,
]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_each_harm_on_disk_is_named(run: Path, harm: Callable[[Path], set[tuple[str, str, str, str]]]) -> None:
    expected = harm(run)
    assert expected
    found = told(on_disk(run))
    assert expected <= found, f"not named: {expected - found}; named: {found}"


def test_only_the_rounds_asked_for(run: Path) -> None:
    set_cell(run / "rounds/0001/advantages" / SHARD, 0, "advantage", 9.0)
    report = verify(run, rounds=range(2, 3), rewards=False, mlflow=False)
    assert (report.rounds, report.differences) == ([2], [])
    with pytest.raises(UserError, match="rounds 0 to 2"):
        verify(run, rounds=range(7, 9))


def test_a_run_that_goes_on_is_unfinished_not_wrong(run: Path) -> None:
    later = (
        "difficulty",
        "advantages",
        "gates",
        "reference",
        "steps",
        "trainer_state",
        "policy",
        "evaluation",
        "promotion",
    )
    for artifact in later:
        shutil.rmtree(run / "rounds/0002" / artifact)
    (run / "rounds/0002/rewards/manifest.json").unlink()
    report = verify(run, rewards=False, mlflow=False)
    assert report.differences == []
    assert sorted(report.unfinished) == sorted(f"rounds/0002/{name}" for name in ("rewards", *later))


def test_a_folder_without_a_manifest_is_not_vouched_for(run: Path) -> None:
    (run / "rounds/0001/notes").mkdir()
    (run / "rounds/0001/notes/notes.parquet").write_bytes(b"")
    report = verify(run, rewards=False, mlflow=False)
    assert report.differences == []
    assert "rounds/0001/notes: it has no manifest, so nothing vouches for it." in report.skipped


def test_a_judge_is_asked_only_on_request(run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("name: math", "name: reward_model"))
    report = verify(run, rounds=range(1, 2), mlflow=False)
    assert any(why.startswith("Rewards by reward_model") and "--models" in why for why in report.skipped)
    assert "rewards computed again" not in report.checked


def test_beside_a_judge_the_other_components_are_computed_again(tmp_path: Path) -> None:
    components = {"right": {"reward": "math"}, "judged": {"reward": "judge", "weight": 2.0}}
    run = store_run(tmp_path / "run", {1: {"a": ["42", "41"], "b": ["so 42", "7"]}}, reward={"components": components})
    paid = {"0001/a/0": (1.0, 0.5, 2.0), "0001/a/1": (0.75, 0.0, 0.75), "0001/b/0": (1.0, 0.5, 1.5), "0001/b/1": None}
    rows = [
        {
            "rollout_id": key, "round": 1, "prompt_id": key[5], "sample_index": int(key[-1]),
            "verdict": "ok" if values else "error", "extracted": None, "gold": "42", "detail": "",
            "components": [("right", values[0]), ("judged", values[1])] if values else [("right", 0.0)],
            "reward": values[2] if values else None,
        }
        for key, values in paid.items()
    ]  # fmt: skip
    writer = ArtifactWriter(run.artifact("rounds/0001/rewards"), Fingerprint("test", 1, 1, {}, {}))
    writer.write_table("shard-00000.parquet", pa.Table.from_pylist(rows, schema=REWARDS))
    writer.finish()
    report = Report(run.uri, [1])
    recompute_sure(report, run, 1)
    assert {(d.row, d.column, d.stored, d.found) for d in report.differences} == {
        ("0001/a/1", "components.right", 0.75, 0.0),
        ("0001/b/0", "reward", 1.5, 2.0),
    }


def test_a_reward_that_is_not_there_is_told_and_the_rest_proven(run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("name: math", "name: not_there:at_all"))
    set_cell(run / "rounds/0001/advantages" / SHARD, 0, "advantage", 9.0)
    found = told(verify(run, mlflow=False).differences)
    assert any(where == "rounds/0001/rewards" and "not_there" in what for where, what, _, _ in found)
    assert ("rounds/0001/advantages", "a file has other bytes than its manifest says", "", SHARD) in found


def test_harm_in_mlflow_is_named(run: Path) -> None:
    with sqlite3.connect(run.parent / "mlflow.db") as store:
        uuid = {
            name: identity
            for identity, name in store.execute("SELECT run_uuid, name FROM runs")
            if name in ("tiny", "round-0001", "round-0002")
        }
        store.execute(
            "UPDATE latest_metrics SET value = 0.9 WHERE run_uuid = ? AND key = 'reward/reward_mean'",
            (uuid["round-0001"],),
        )
        store.execute(
            "UPDATE metrics SET value = 0.9 WHERE run_uuid = ? AND key = 'update/kl' AND step = 2", (uuid["tiny"],)
        )
        store.execute("UPDATE params SET value = '7' WHERE run_uuid = ? AND key = 'seed'", (uuid["tiny"],))
        store.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", (uuid["round-0002"],))
    (rewards,) = (run.parent / "mlartifacts").glob(f"**/{uuid['round-0001']}/artifacts/rewards")
    (rewards / SHARD).unlink()
    (rewards / "shard-00000.parquet").write_bytes(b"other")
    (rewards / "shard-00044.parquet").write_bytes(b"more")
    found = told(verify(run, rewards=False).differences)
    assert found == {
        ("MLflow round-0001", "a metric is another one", "", "reward/reward_mean"),
        ("MLflow tiny", "a metric is another one", "step 2", "update/kl"),
        ("MLflow tiny", "a param is another one", "", "seed"),
        ("MLflow round-0001", "a file is missing there", "", f"rewards/{SHARD}"),
        ("MLflow round-0001", "a file has other bytes than on disk", "", "rewards/shard-00000.parquet"),
        ("MLflow round-0001", "a file that the disk doesn't have", "", "rewards/shard-00044.parquet"),
        (
            "MLflow round-0002",
            f"the round has no run; rebuild it with: grpo-rounds track {run}",
            "",
            "",
        ),
    }


@pytest.mark.parametrize("harm", ["gone", "another run's", "no store"])
def test_an_mlflow_out_of_reach_is_a_difference(run: Path, harm: str) -> None:
    if harm == "gone":
        (run.parent / "mlflow.db").unlink()
    elif harm == "another run's":
        identity = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(identity | {"run_id": "0" * 32}))
    else:
        (run.parent / "mlflow.db").write_bytes(b"no database" * 100)
    (found,) = [d for d in verify(run, rewards=False).differences if d.where == "MLflow"]
    assert ("grpo-rounds track" in found.what) == (harm != "no store")
    assert not (run.parent / "mlflow.db").exists() or harm != "gone"
