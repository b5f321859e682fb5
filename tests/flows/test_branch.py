"""Branches: another estimator or update on stored rollouts; the run stays as it is, to the last byte."""

import hashlib
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support import ROOT, digests

from flows.branch import Wish, make_branch, plan_branch
from flows.stages import examine, stages_of
from grpo_core.errors import UserError
from grpo_core.schemas import ADVANTAGES, STEPS
from tasks.branch_report import Report
from tasks.rescore import compare_advantages
from tasks.run import open_run
from tasks.tracking import Tracker
from tasks.verify import verify_run

ODD = "support:odd_bytes"  # on the tiny run's rollouts a reward that differs within groups


def every_file(run: Path) -> dict[str, str]:
    """The sha256 of all files but those of branches, hidden ones included."""
    names = [path for path in sorted(run.rglob("*")) if path.is_file() and "branches" not in path.parts]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in names}


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "run"
    shutil.copytree(finished_run, copy)
    return copy


def branch(run: Path, **wish: Any) -> tuple[Path, Report]:
    plan = plan_branch(str(run), Wish(**wish))
    return Path(plan.place), make_branch(plan)


def policy(run: Path, number: int) -> bytes:
    return (run / f"rounds/{number:04d}/policy/model.safetensors").read_bytes()


def test_retrained_with_nothing_changed_it_has_the_runs_own_bytes(run: Path) -> None:
    before = every_file(run)
    place, report = branch(run, retrain=True, evaluate=True)
    assert every_file(run) == before
    assert place == run / "branches/retrain"
    assert [policy(place, n) for n in (1, 2)] == [policy(run, n) for n in (1, 2)]
    assert [change.update.off_policy for change in report.rounds if change.update] == [False, False]
    assert [change.advantages.sign_changed for change in report.rounds if change.advantages] == [0.0, 0.0]
    assert report.differs == {}
    assert report.evaluation is not None
    assert {old == new for old, new in report.evaluation.values()} == {True}
    assert {path.name for path in (place / "rounds/0001").iterdir()} == {
        "advantages",
        "reference",
        "steps",
        "trainer_state",
        "policy",
    }
    # Made already: nothing is written again but what tells of it.
    written = {path: path.stat().st_mtime_ns for path in (place / "rounds").rglob("*")}
    assert branch(run, retrain=True, evaluate=True)[1] == report
    assert {path: path.stat().st_mtime_ns for path in (place / "rounds").rglob("*")} == written


@pytest.mark.slow
def test_killed_inside_it_ends_with_the_same_bytes(command: Any, run: Path, tmp_path: Path) -> None:
    before = every_file(run)
    wish = (
        *("rescore", run, "--reward", ODD, "--advantage", "centred", "--retrain", "--evaluate"),
        *("--set", "update.learning_rate=0.01", "--name", "odd"),
    )
    environment = {"PYTHONPATH": str(ROOT / "tests")}
    for fault in (
        "after-rename:config.yaml",
        "after-rename:branch.json",
        "after-rename:rounds/0001/rewards/shard-00001.parquet",
        "before-rename:rounds/0001/update_checkpoint/step-000002/*",
        "after-rename:rounds/0002/steps/steps.parquet",
        "before-rename:rounds/0002/evaluation/manifest.json",
    ):
        killed = command(*wish, fault=fault, **environment)
        assert killed.returncode == -signal.SIGKILL, (fault, killed.stdout, killed.stderr)
    done = command(*wish, "--json", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    place = run / "branches/odd"
    assert every_file(run) == before

    other = tmp_path / "other"
    told = command(*wish, "--out", other, **environment)
    assert told.returncode == 0, told.stdout + told.stderr
    assert digests(other) == digests(place)
    for name in ("report.json", "report.md"):
        assert (other / name).read_bytes() == (place / name).read_bytes()
    assert not list(place.rglob(".tmp-*")) + list(place.rglob("update_checkpoint"))

    report = json.loads(done.stdout)
    first, second = report["rounds"]
    assert report["out"] == str(place)
    assert report["differs"]["update.learning_rate"] == [0.001, 0.01]
    assert report["differs"]["advantage.estimator"] == ["group", "centred"]
    assert (first["update"]["off_policy"], second["update"]["off_policy"]) == (False, True)
    assert first["update"]["policy_before"] != first["update"]["policy_after"]
    assert second["update"]["metrics"]["ratio_ess"][1] < 1
    assert any("off-policy" in note for note in report["notes"])
    assert "advantages:" in told.stdout
    assert "off-policy" in told.stdout
    # Steps name the very rollouts that the run stored.
    steps = open_run(str(place)).artifact("rounds/0002/steps").read_table(STEPS)
    assert set(steps["rollout_id"].to_pylist()) <= set(
        open_run(str(run)).artifact("rounds/0002/advantages").read_table(ADVANTAGES)["rollout_id"].to_pylist()
    )

    statuses = [found for number in range(3) for found in examine(open_run(str(place)), number)]
    assert {(s.round, s.stage) for s in statuses} == {
        *((n, stage) for n in (1, 2) for stage in ("score_rewards", "compute_advantages", "update_policy")),
        (2, "evaluate_policy"),
    }
    assert all(s.condition.done for s in statuses)
    shown = command("status", place, **environment)
    assert "2 of 2 rounds done." in shown.stdout
    refused = command("resume", place, **environment)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is a branch of" in refused.stderr

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run.parent}/mlflow.db")
    experiment = client.get_experiment_by_name("grpo-rounds")
    assert experiment is not None
    identity = json.loads((run / "run.json").read_text())["run_id"]
    (mirrored, _) = client.search_runs([experiment.experiment_id], f"tags.`grpo_rounds.branch_of` = '{identity}'")
    assert mirrored.info.run_name == "tiny.odd"
    assert "update/kl" in mirrored.data.metrics


def test_another_estimator_on_the_runs_own_rewards(run: Path) -> None:
    before = every_file(run)
    place, report = branch(run, advantage="rank", rounds="2", out=str(run.parent / "rank"))
    assert every_file(run) == before
    assert not (run / "branches").exists()
    assert [change.round for change in report.rounds] == [2]
    assert (report.rounds[0].changed, report.rounds[0].update) == (0, None)
    own = sorted(path.name for path in (place / "rounds/0002").iterdir())
    assert own == ["advantages"]
    # A branch of a branch reads through both.
    again, report = branch(place, advantage="centred")
    assert again == place / "branches/centred"
    found = open_run(str(again))
    assert found.artifact("rounds/0002/rollouts").condition().done
    assert found.artifact("rounds/0002/advantages").condition().done
    assert report.differs == {"advantage.estimator": ["rank", "centred"]}
    assert Tracker(found).place == Tracker(open_run(str(run))).place


def test_a_run_that_moved_keeps_its_branches(run: Path) -> None:
    branch(run, advantage="centred")
    moved = run.rename(run.with_name("moved"))
    found = open_run(str(moved / "branches/centred"))
    assert found.branch is not None
    assert found.branch.parent == str(moved)
    assert found.artifact("rounds/0001/rewards").condition().done


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"retrain": True, "rounds": "2"}, "starts from '.*rounds/0001/policy', which retention removed; let --rounds"),
        ({"advantage": "adaptive_tiers", "rounds": "2"}, "adaptive_tiers goes from round to round"),
        ({"advantage": "rank", "rounds": "2-3"}, "rollouts and rewards of rounds 1 to 2"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_leaves_nothing(run: Path, wish: dict[str, Any], words: str) -> None:
    open_run(str(run)).artifact("rounds/0001/policy").retire()
    before = every_file(run)
    with pytest.raises(UserError, match=words):
        branch(run, **wish)
    assert every_file(run) == before
    assert not (run / "branches").exists()


def test_harmed_files_of_the_run_are_not_branched_from(run: Path) -> None:
    shard = run / "rounds/0002/rewards/shard-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError, match="rounds/0002/rewards' is damaged"):
        branch(run, advantage="rank")
    assert not (run / "branches").exists()
    (run / "rounds/0001/rollouts/manifest.json").unlink()
    (run / "rounds/0002/rewards/manifest.json").unlink()
    with pytest.raises(UserError, match="has no rollouts and rewards yet; run: grpo-rounds resume"):
        branch(run, advantage="rank")


def test_a_branch_goes_into_no_run_and_no_other_runs_branch(run: Path, tmp_path: Path) -> None:
    place, _ = branch(run, advantage="rank", out=str(tmp_path / "x"))
    with pytest.raises(UserError, match="is a training run itself"):
        branch(run, advantage="rank", out=str(run))
    with pytest.raises(UserError, match="lies among the run's own files"):
        branch(place, advantage="centred", out=str(place))
    other, _ = branch(place, advantage="centred", out=str(tmp_path / "y"))
    with pytest.raises(UserError, match="is a branch of another run"):
        branch(run, advantage="centred", out=str(other))


def advantages(rows: list[tuple[str, float, bool]]) -> pa.Table:
    empty = {field.name: None if field.nullable else 0 for field in ADVANTAGES}
    made = [
        empty | {"rollout_id": f"1/{n}", "prompt_id": p, "advantage": a, "in_loss": live, "zero_variance": False}
        for n, (p, a, live) in enumerate(rows)
    ]
    return pa.Table.from_pylist(made, schema=ADVANTAGES)


def test_advantages_side_by_side_by_hand() -> None:
    before = advantages([("a", 1.0, True), ("a", -1.0, True), ("b", 0.0, False), ("b", 0.0, False)])
    after = advantages([("a", 0.0, False), ("a", 0.0, False), ("b", 1.0, True), ("b", -1.0, True)])
    found = compare_advantages(before, after)
    assert found.sign_changed == 1.0
    assert found.correlation == pytest.approx(0.0)
    assert (found.groups_live_before, found.groups_live_after) == (1, 1)
    assert (found.became_live, found.became_dead) == (1, 1)
    same = compare_advantages(before, before)
    assert (same.sign_changed, same.correlation) == (0.0, pytest.approx(1.0))
    assert compare_advantages(before, advantages([("a", 2.0, True), ("a", 2.0, True)])).correlation is None


def test_a_branch_is_verified_like_any_run(run: Path) -> None:
    place, _ = branch(run, advantage="rank")
    report = verify_run(
        open_run(str(place)), lambda opened, number: [stage for _, stage in stages_of(opened, number)], mlflow=False
    )
    assert report.as_dict()["differences"] == []
    assert report.checked["rollouts"] > 0
