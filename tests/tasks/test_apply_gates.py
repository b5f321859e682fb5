"""The stage on a real tiny run: what it leaves, what the update takes from it, and a stop with the way on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import TINY, digests

from flows.stages import stages_of
from grpo_core.config import load_config
from grpo_core.gates import Factors, GateStop
from grpo_core.schemas import GROUPS
from tasks import apply_gates, update_policy
from tasks.gate_record import gate_findings
from tasks.run import Run, create_or_open, round_folder
from tasks.stage import execute
from tasks.summary import round_summary

# Rollouts of random weights never end by themselves: the share cut off is near 1 in every round.
WARN, STOP, LOWER = ([f"gates.actions.truncated={action}"] for action in ("warn", "stop", "lower_lr"))


def open_tiny(folder: Path, overrides: list[str]) -> Run:
    # A round takes more than half of the prompts, so that the next one meets some of them again.
    shape = ["data.prompts_per_round=12", "generation.group_size=4", "evaluation.samples=0"]
    shape.append("reward.name=support:odd_bytes")
    return create_or_open(str(folder), load_config(TINY, [*shape, *overrides], rounds=4))[0]


def do(run: Run, number: int, until: str = "") -> None:
    """The stages of a round in order, without Prefect; those before ``until`` when it is given."""
    for _, stage in stages_of(run, number):
        if stage.name == until:
            return
        execute(stage, run, number)


def record(run: Run, number: int) -> dict[str, Any]:
    return json.loads(run.store.read_bytes(round_folder(number, "gates/gates.json")))


def metrics(run: Run, number: int, artifact: str) -> dict[str, float]:
    return dict(run.artifact(round_folder(number, artifact)).manifest().metrics)


def states(run: Run, number: int) -> set[str]:
    return {stage.condition(run, number, stage.fingerprint(run, number)).state for _, stage in stages_of(run, number)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds; treat it as read-only."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    run = open_tiny(folder, [])
    for number in range(3):
        do(run, number)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def test_by_default_gates_warn_and_change_nothing(folder):
    run = open_tiny(folder, [])
    for number in (1, 2):
        assert apply_gates.read_factors(run, number) == Factors(1.0, 1.0)
        assert metrics(run, number, "policy")["learning_rate"] == run.config.update.learning_rate
    found = record(run, 2)
    assert {finding["action"] for finding in found["findings"]} == {"warn"}
    seen, update = found["signals"]["values"], metrics(run, 1, "policy")
    assert seen["truncated"] == metrics(run, 2, "rollouts")["truncated_share"] > 0.5
    assert seen["zero_variance"] == metrics(run, 2, "advantages")["zero_variance_share"]
    assert (seen["kl"], seen["direction"], seen["entropy"]) == (update["kl"], update["direction"], 1.0)
    assert found["signals"]["accuracies"] == [metrics(run, n, "evaluation")["accuracy"] for n in (0, 1)]
    (sentence,) = (text for text in gate_findings(run, 2) if text.startswith("truncated"))
    assert sentence.startswith("truncated (warn): share of rollouts cut off in round 2 is ")
    assert sentence in round_summary(run, 2)["findings"]


def test_done_again_it_decides_the_same_bytes_and_the_update_stays(folder, trained):
    run = open_tiny(folder, [])
    run.store.delete(round_folder(2, "gates"))
    execute(apply_gates.STAGE, run, 2)
    assert digests(folder) == digests(trained)
    assert states(run, 2) == {"done"}


def test_thresholds_changed_later_make_nothing_stale(folder):
    run = open_tiny(folder, [*STOP, "gates.kl=0.001", "gates.window=4"])
    assert states(run, 1) == states(run, 2) == {"done"}


def test_a_lowered_learning_rate_reaches_the_update_and_its_key(folder):
    warned = open_tiny(folder, WARN)
    do(warned, 3, until="update_policy")
    plain = update_policy.STAGE.fingerprint(warned, 3).digest
    warned.store.delete(round_folder(3, "gates"))

    run = open_tiny(folder, LOWER)
    do(run, 3)
    do(run, 4)
    rate = run.config.update.learning_rate
    assert update_policy.STAGE.fingerprint(run, 3).digest != plain
    assert [metrics(run, n, "policy")["learning_rate"] for n in (2, 3, 4)] == [rate, rate / 2, rate / 4]
    assert metrics(run, 4, "gates")["learning_rate_factor"] == 0.25

    # Most of its prompts were taken before, the newest visit being that of round 3.
    taken = [
        set(run.artifact(round_folder(n, "gates")).read_table(GROUPS)["prompt_id"].to_pylist()) for n in (1, 2, 3, 4)
    ]
    seen = metrics(run, 4, "gates")["groups_seen_before"]
    assert seen == len(taken[3] & (taken[1] | taken[2])) > 0  # within two epochs, of one round each
    assert 0 <= metrics(run, 4, "gates")["tier_kept_share"] <= 1


def test_a_stop_leaves_no_update_and_a_changed_action_goes_on(folder, trained):
    run = open_tiny(folder, STOP)
    for _ in range(2):  # asked again without a change, it stops again
        with pytest.raises(GateStop, match=r"Gate truncated stopped .* round 3: .* above gates\.truncated 0\.5"):
            do(run, 3)
        assert {path.name for path in (folder / "rounds/0003").iterdir()} == {
            *("plan.parquet", "plan.manifest.json", "plan.timings.json"),
            *("labels", "rollouts", "rewards", "difficulty", "advantages", "gates"),
        }
        assert not run.artifact(round_folder(3, "gates")).manifest()
    before = digests(trained)
    assert {name: value for name, value in digests(folder).items() if name in before} == before

    assert any(text.startswith("truncated (stop): ") for text in gate_findings(run, 3))

    run = open_tiny(folder, WARN)
    do(run, 3)
    assert states(run, 3) == {"done"}
    assert not any("(stop)" in text for text in gate_findings(run, 3))
