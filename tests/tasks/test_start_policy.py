"""Real tiny runs that go back to the champion: what the next round takes, and the same bytes after a kill."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from known_answers import name_of
from left_alone import train_here
from support import ROOT, TINY, digests

from flows.stages import stages_of
from grpo_core.config import load_config
from grpo_core.schemas import EVALUATION, ROLLOUTS
from tasks import generate_rollouts, update_policy
from tasks.promotion_record import decision_about
from tasks.run import Run, create_or_open, open_run, round_folder
from tasks.stage import execute
from tasks.start_policy import start_of

# So high a rate that no greedy answer of a policy is left after a round.
SHAPE = ["update.learning_rate=0.03", "generation.group_size=4", "evaluation.samples=0", "promotion.resamples=500"]


def reward(name: str, known: list[str]) -> list[str]:
    return [f"reward.name=known_answers:{name}", f"reward.options={json.dumps({'known': known})}"]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The greedy answers of the starting policy."""
    config = load_config(TINY, [*SHAPE, *reward("keeps", [])], rounds=1)
    run = create_or_open(str(tmp_path_factory.mktemp("known") / "run"), config)[0]
    for _, stage in stages_of(run, 0):
        execute(stage, run, 0)
    table = run.artifact(round_folder(0, "evaluation")).read_table(EVALUATION)
    return sorted({name_of(text) for text in table["text"].to_pylist()})


def digest(run: Run, number: int, kind: str) -> str:
    return run.artifact(round_folder(number, kind)).manifest().digest


@pytest.fixture(scope="module")
def went_back(known: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds, the last from the policy of the first; treat it as read-only."""
    folder = tmp_path_factory.mktemp("back") / "run"
    config = load_config(TINY, [*SHAPE, *reward("leaves", known), "promotion.go_back=when_refused"], rounds=3)
    train_here(folder, config)
    return folder


def test_the_next_round_takes_the_champion_s_policy_and_optimiser(went_back):
    run = open_run(str(went_back))
    assert [decision_about(run, n)["training"]["decision"] for n in range(3)] == ["first", "promoted", "refused"]
    assert [start_of(run, n) for n in (1, 2, 3)] == [0, 1, 1]
    rollouts = [run.artifact(round_folder(n, "rollouts")).read_table(ROLLOUTS) for n in (2, 3)]
    assert [set(table["policy_digest"].to_pylist()) for table in rollouts] == [{digest(run, 1, "policy")}] * 2
    assert digest(run, 1, "policy") != digest(run, 2, "policy")
    inputs = run.artifact(round_folder(3, "policy")).manifest().parts["inputs"]
    assert (inputs["policy"], inputs["trainer_state"]) == (digest(run, 1, "policy"), digest(run, 1, "trainer_state"))
    steps = [
        json.loads(run.store.read_bytes(round_folder(n, "trainer_state/trainer_state.json")))["step"] for n in (1, 3)
    ]
    assert steps[1] == steps[0] + run.artifact(round_folder(3, "policy")).manifest().metrics["steps"]
    assert update_policy.STAGE.models(run, 3) == [round_folder(1, "policy"), round_folder(1, "trainer_state")]
    assert generate_rollouts.STAGE.models(run, 3) == [round_folder(1, "policy")]


@pytest.mark.slow
def test_a_harmed_round_finds_the_removed_models_that_it_started_from(went_back, command, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(went_back, folder)
    run = open_run(str(folder))
    for kind in ("policy", "trainer_state"):
        run.artifact(round_folder(1, kind)).retire()
    whole = digests(folder)
    (folder / "rounds/0003/policy/model.safetensors").unlink()
    done = command("resume", folder, PYTHONPATH=str(ROOT / "tests"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(folder) == whole


FAULTS = [
    "stage-start:promote_policy:0",
    "before-rename:rounds/0001/promotion/*",
    "before-manifest:rounds/0001/promotion",
    "after-rename:rounds/0001/promotion/manifest.json",
    "after-rename:rounds/0002/rollouts/.done-shard-00001.parquet.json",
    "progress:update_policy:2@2",
]


@pytest.mark.long
@pytest.mark.slow
def test_a_worse_candidate_is_left_and_a_killed_run_has_the_same_bytes(known, command, tmp_path):
    overrides = [*reward("keeps", known), "promotion.go_back=when_worse"]
    alone = train_here(tmp_path / "alone/run", load_config(TINY, [*SHAPE, *overrides], rounds=2))
    record = decision_about(alone, 1)["training"]
    assert (record["decision"], record["is_worse"], record["figures"]["difference"]) == ("refused", True, -1.0)
    assert start_of(alone, 2) == 0
    assert "trainer_state" not in alone.artifact(round_folder(2, "policy")).manifest().parts["inputs"]

    killed = tmp_path / "killed/run"
    sets = [part for override in [*SHAPE, *overrides] for part in ("--set", override)]
    for fault in FAULTS:
        died = command("train", TINY, "--run-dir", killed, *sets, fault=fault, PYTHONPATH=str(ROOT / "tests"))
        assert died.returncode == -signal.SIGKILL, (fault, died.stdout, died.stderr)
    done = command("resume", killed, PYTHONPATH=str(ROOT / "tests"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(killed) == digests(tmp_path / "alone/run")
