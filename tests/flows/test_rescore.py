"""``rescore``: another reward on stored rollouts, beside a run that stays as it is."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from stored_run import store_run
from support import digests

from flows.branch import Wish
from flows.rescore import rescore_session
from grpo_core.errors import UserError
from grpo_core.schemas import REWARDS
from tasks import score_rewards
from tasks.run import Run, open_run
from tasks.stage import execute

TEXTS = {
    1: {"a": ["so 42", "\\boxed{42}", "41", "no idea"]},
    2: {"b": ["42 - 1 = 41", "42", "42", "\\boxed{7}"]},
    3: {"c": ["42", "1", "2", "3"]},
}
OWN = """
from pathlib import Path

def counted(samples, log, word="42"):
    with Path(log).open("a") as file:
        file.write("x" * len(samples))
    return [1.0 if word in s.response else 0.0 for s in samples]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "rescore_rewards_for_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rescore_rewards_for_tests", raising=False)
    run = store_run(tmp_path / "run", TEXTS)
    for number in (1, 2):  # the third has rollouts only
        execute(score_rewards.STAGE, run, number)
    return run


def rescore(run: Run, capsys: pytest.CaptureFixture[str], **wish: Any) -> dict[str, Any]:
    rescore_session(run.uri, Wish(**wish), as_json=True, out=Console(file=io.StringIO()))
    return json.loads(capsys.readouterr().out)


def test_what_changed_by_hand_and_the_run_stays_as_it_is(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = digests(Path(run.uri))
    found = rescore(run, capsys, reward="facts", overrides=("reward.options.measure=found",))
    first, second, third = found["rounds"]
    # math: 42, boxed 42, 41, nothing; facts: only whether the words 42 are there.
    assert first["transitions"] == {"unparsable -> wrong": 1}
    assert (first["reward_mean_before"], first["reward_mean_after"]) == (pytest.approx(2.1 / 4), 0.5)
    assert (first["changed"], first["first_changed"]) == (2, ["0001/a/1", "0001/a/3"])
    assert second["transitions"] == {"wrong -> ok": 1}
    assert second["first_changed"] == ["0002/b/0", "0002/b/3"]
    assert (third["reward_mean_before"], third["reward_mean_after"], third["changed"]) == (None, 0.25, 0)
    assert found["out"] == f"{run.uri}/branches/facts-reward.options.measure.found"
    assert {name: value for name, value in digests(Path(run.uri)).items() if "branches" not in name} == before
    table = json.loads((Path(found["out"]) / "rounds/0002/rewards/manifest.json").read_text())
    assert table["rows"] == 4
    assert open_run(found["out"]).artifact("rounds/0002/rewards").read_table(REWARDS)["gold"].to_pylist() == ["42"] * 4


def test_the_same_reward_changes_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = rescore(run, capsys, rounds="1-2")
    assert [(r["round"], r["changed"], r["transitions"]) for r in found["rounds"]] == [(1, 0, {}), (2, 0, {})]


def test_only_what_is_missing_is_scored_again(run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = {
        "reward": "rescore_rewards_for_tests:counted",
        "overrides": (f"reward.options.log={log}",),
        "out": str(tmp_path / "out"),
    }
    first = rescore(run, capsys, rounds="1", **arguments)
    assert len(log.read_text()) == 4
    second = rescore(run, capsys, rounds="1-2", **arguments)
    assert len(log.read_text()) == 8
    assert second["rounds"][0] == first["rounds"][0]
    arguments["overrides"] = (*arguments["overrides"], "reward.options.word=boxed")
    third = rescore(run, capsys, rounds="2", **arguments)
    assert len(log.read_text()) == 12  # another option: nothing that lies there counts
    assert third["rounds"][0]["transitions"] == {"ok -> wrong": 2, "wrong -> ok": 1}
    assert not Path(run.uri, "branches").exists()


def test_smoothing_goes_through_every_round(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ("reward.components.right={reward: math}", "reward.smoothing=0.5")
    found = rescore(run, capsys, overrides=overrides)
    state = Path(found["out"]) / "rounds/0003/rewards/smoothing.json"
    means = [2.1 / 4, 2.1 / 4, 1 / 4]
    expected = 0.5 * (0.5 * means[0] + 0.5 * means[1]) + 0.5 * means[2]
    assert json.loads(state.read_text())["right"]["mean"] == pytest.approx(expected)
    with pytest.raises(UserError, match="leave --rounds out"):
        rescore(run, capsys, overrides=overrides, rounds="2-3")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"reward": "maths"}, r"reward\.name 'maths' is not known"),
        ({"overrides": ("seed=3",)}, "--set 'seed=3': rescore changes the reward, the advantage and"),
        ({"overrides": ("update.learning_rate=1",)}, "add --retrain"),
        ({"advantage": "grup"}, r"'advantage\.estimator' can't be 'grup'"),
        ({"advantage": "rank", "overrides": ("advantage.ddof=0",)}, "estimator rank does not read it"),
        ({"retrain": True, "overrides": ("update.leaning_rate=1",)}, r"unknown key 'update\.leaning_rate'"),
        ({"advantage": "rank", "rounds": "1-3"}, "rollouts and rewards of rounds 1 to 2"),
        ({"retrain": True}, "has no rollouts, rewards and gates yet"),
        ({"evaluate": True}, "add --retrain"),
        ({"name": "../x"}, "--name '../x' can't name a folder"),
        ({"overrides": ("reward.corect=3",)}, r"unknown key 'reward\.corect'; known here: .*correct"),
        ({"overrides": ("reward.components.a={reward: math, wait: 1}",)}, "known here: options, reward, weight"),
        ({"rounds": "x"}, "is no range"),
        ({"rounds": "2-9"}, "rollouts of rounds 1 to 3"),
        ({"rounds": "3-2"}, "rollouts of rounds 1 to 3"),
        ({"out": ""}, "is a training run itself"),
        ({"out": "/rounds/0009"}, "lies among the run's own files"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: dict[str, Any], words: str
) -> None:
    if "out" in arguments:
        arguments = {"out": run.uri + arguments["out"]}
    before = sorted(Path(run.uri).rglob("*"))
    with pytest.raises(UserError, match=words):
        rescore(run, capsys, **arguments)
    assert sorted(Path(run.uri).rglob("*")) == before


def test_damaged_rollouts_are_not_scored(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    shard = Path(run.uri, "rounds/0002/rollouts/shard-00000.parquet")
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError, match="rounds/0002/rollouts' is damaged"):
        rescore(run, capsys, reward="diversity")


def test_a_table_for_people(run: Run) -> None:
    out = Console(file=io.StringIO(), width=200)
    rescore_session(run.uri, Wish(reward="diversity", rounds="2"), False, out)
    said = out.file.getvalue()
    assert "round    2  4 of 4 changed  reward 0.525 -> 0.500  2 ok -> wrong, 2 wrong -> ok" in said
    assert "0002/b/0" in said
    assert "branches/diversity" in said
