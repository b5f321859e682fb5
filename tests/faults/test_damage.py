"""Nothing is trusted unseen: a file of any artifact that is not as its manifest says is found, named, made again."""

import shutil
from pathlib import Path

import pytest
from support import digests

from flows.stages import examine
from tasks.run import open_run

# One of each kind of file that a run has, and the stage that it belongs to.
FILES = {
    "prompts/train.parquet": "filter_prompts",
    "prompts/rejected.parquet": "filter_prompts",
    "rounds/0000/policy/tokenizer.json": "initial_policy",
    "rounds/0000/policy/config.json": "initial_policy",
    "rounds/0001/plan.parquet": "plan_round",
    "rounds/0001/rollouts/shard-00001.parquet": "generate_rollouts",
    "rounds/0001/rollouts/canary.json": "generate_rollouts",
    "rounds/0001/rewards/shard-00000.parquet": "score_rewards",
    "rounds/0001/advantages/shard-00002.parquet": "compute_advantages",
    "rounds/0001/rewards/monitor.json": "score_rewards",
    "rounds/0001/gates/factors.json": "apply_gates",
    "rounds/0002/gates/gates.json": "apply_gates",
    "rounds/0001/gates/groups.parquet": "apply_gates",
    "rounds/0001/policy/canary.json": "update_policy",
    "rounds/0001/policy/model.safetensors": "update_policy",
    "rounds/0002/trainer_state/optimizer-00000.safetensors": "update_policy",
    "rounds/0002/trainer_state/rng.safetensors": "update_policy",
    "rounds/0002/trainer_state/trainer_state.json": "update_policy",
    "rounds/0001/steps/steps.parquet": "update_policy",
    "rounds/0002/evaluation/evaluation.parquet": "evaluate_policy",
    "rounds/0002/promotion/decision.json": "promote_policy",
    "prompts/manifest.json": "filter_prompts",
    "rounds/0001/rewards/manifest.json": "score_rewards",
    "rounds/0002/policy/manifest.json": "update_policy",
}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def delete(path: Path) -> None:
    path.unlink()


def swap(path: Path) -> None:
    """Another file of the same kind in its place: whole, and wrong."""
    others = [other for other in path.parent.parent.parent.rglob(path.name) if other.read_bytes() != path.read_bytes()]
    others += [other for other in path.parent.glob(f"*{path.suffix}") if other.read_bytes() != path.read_bytes()]
    shutil.copy(others[0], path)


@pytest.fixture
def run(finished_run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(finished_run, copy)
    return copy


@pytest.mark.parametrize("harm", [flip, truncate, delete, swap])
@pytest.mark.parametrize("name", FILES)
def test_a_harmed_file_is_found_and_named(run, name, harm):
    harm(run / name)
    opened = open_run(str(run))
    statuses = {(s.round, s.stage): s.condition for n in range(3) for s in examine(opened, n)}
    bad = {key: condition for key, condition in statuses.items() if not condition.done}
    number = int(name.split("/")[1]) if name.startswith("rounds/") else 0
    assert (number, FILES[name]) in bad
    condition = bad.pop((number, FILES[name]))
    if not name.endswith("manifest.json"):
        assert condition.state == "damaged"
        assert name in condition.why
        assert bad == {}  # the digests of everything else still hold
    else:
        # A manifest that can't be trusted is as good as none: what reads that artifact can't be proven, either.
        assert condition.state in ("damaged", "missing", "stale")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "again"),
    [
        (["rounds/0001/rollouts/shard-00001.parquet"], ["rollouts"]),
        (["rounds/0001/policy/model.safetensors", "rounds/0002/rewards/shard-00001.parquet"],
         ["policy", "trainer_state", "reference", "steps", "rewards"]),
        (["prompts/eval.parquet", "rounds/0000/policy/config.json", "rounds/0002/evaluation/manifest.json"],
         ["policy", "prompts", "evaluation"]),
    ],
)  # fmt: skip
def test_only_what_was_harmed_is_made_again_with_the_same_bytes(command, finished_run, run, names, again):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*manifest.json")}
    for name in names:
        flip(run / name)
    told = command("status", run, "--json")
    assert all(name in told.stdout for name in names if not name.endswith("manifest.json"))
    done = command("resume", run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(run) == digests(finished_run)
    renewed = {path.parent.name for path, written in before.items() if path.stat().st_mtime_ns != written}
    assert renewed == set(again)
