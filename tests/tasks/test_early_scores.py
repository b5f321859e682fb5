"""Rewards made while later shards are generated: the same bytes, used once, only for the shards they were made of."""

import shutil
from pathlib import Path

import pytest
from support import digests

from grpo_core.rewards import workers
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.score import checks_aside
from tasks import early_scores, generate_rollouts, score_rewards
from tasks.reward_tables import Tables
from tasks.run import Run, open_run, round_folder
from tasks.stage import execute

niceness: list[int] = []  # of the threads that scored


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Run:
    """A run whose second round has a plan and no rollouts."""
    copy = tmp_path / "run"
    shutil.copytree(finished_run, copy)
    for folder in sorted((copy / "rounds/0002").iterdir()):
        if folder.is_dir() and folder.name != "labels":
            shutil.rmtree(folder)
    return open_run(str(copy))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards that were scored, in order."""
    names: list[str] = []
    niceness.clear()
    make = Tables.make

    def noted(tables: Tables, name: str) -> object:
        names.append(name)
        niceness.append(workers.niceness())
        return make(tables, name)

    monkeypatch.setattr(Tables, "make", noted)
    return names


def test_shards_are_scored_once_and_early_with_the_same_bytes(run: Run, made: list[str], finished_run: Path) -> None:
    execute(generate_rollouts.STAGE, run, 2)
    shards = run.artifact(round_folder(2, "rollouts")).tables()
    assert made == shards
    execute(score_rewards.STAGE, run, 2)
    assert made == shards
    rewards = {name: digest for name, digest in digests(Path(run.uri)).items() if name.startswith("rounds/0002/rew")}
    assert rewards
    assert rewards.items() <= digests(finished_run).items()
    assert early_scores._waiting == {}


def test_what_runs_a_users_code_or_costs_money_waits_for_its_stage() -> None:
    assert checks_aside(RewardConfig(name="math"))
    assert checks_aside(RewardConfig(name="code"))
    assert not checks_aside(RewardConfig(name="support:odd_bytes"))
    assert not checks_aside(RewardConfig(name="judge"))
    assert not checks_aside(RewardConfig(name="logprob"))


def test_other_bytes_are_scored_again(run: Run, made: list[str]) -> None:
    execute(generate_rollouts.STAGE, run, 2)
    shards = run.artifact(round_folder(2, "rollouts")).tables()
    for ready in early_scores._waiting.values():
        record, table = ready[shards[0]]
        ready[shards[0]] = (type(record)("0" * 64, record.size), table)
    execute(score_rewards.STAGE, run, 2)
    assert made == [*shards, shards[0]]
    assert niceness == [workers.LAST] * len(shards) + [workers.niceness()]  # early ones let the model go first


def test_a_check_that_came_to_no_end_waits_for_its_stage(run: Run, made: list[str], monkeypatch) -> None:
    monkeypatch.setattr(early_scores, "failed_checks", lambda _: ["timeout"])
    execute(generate_rollouts.STAGE, run, 2)
    execute(score_rewards.STAGE, run, 2)
    shards = run.artifact(round_folder(2, "rollouts")).tables()
    assert made == [*shards, *shards]
