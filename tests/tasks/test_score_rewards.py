"""Scoring a stored round: what reaches the advantages, what is done again, what stops the run."""

import json
import math
import sys
from pathlib import Path

import pytest
from stored_run import store_run
from support import digests

from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from grpo_core.prompts.config import DataConfig
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.own import own_code
from grpo_core.schemas import ADVANTAGES, REWARDS
from tasks import compute_advantages, score_rewards
from tasks.pools import held_out_sources, training_sources_at
from tasks.run import Run, round_folder
from tasks.stage import execute

OWN = """
from pathlib import Path
from grpo_core.rewards.verdict import Score, Verdict

def by_text(samples):
    known = {"none": None, "nan": float("nan"), "inf": float("inf"), "late": Score(Verdict.TIMEOUT, 0.0),
             "masked": Score(Verdict.UNPARSABLE, None), "lost": Verdict.MISSING}
    return [known[s.response] if s.response in known else float(s.response) for s in samples]

def while_up(samples, folder):
    place = Path(folder)
    with (place / "asked").open("a") as log:
        log.write("".join(f"{s.id}\\n" for s in samples))
    if (place / "crash").exists() and any(s.prompt == "b?" for s in samples):
        raise OSError("gone")
    down = (place / "down").exists()
    return [Score(Verdict.ERROR, None, detail="no service") if down and s.response != "fine" else 1.0 for s in samples]

def by_extra(samples, times):
    score = lambda mark: Score(Verdict.OK, mark * times, {"mark": mark * times})
    return [Score(Verdict.TIMEOUT, None) if s.response == "late" else score(s.extra["mark"]) for s in samples]

def groups(samples):
    return [float(len({s.id for s in samples if s.group == one.group})) for one in samples]

def facts_of_a_sample(samples):
    return [float(1000 * s.completion_tokens + s.max_new_tokens + len(s.prompt_ids)) for s in samples]
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stage_rewards_for_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stage_rewards_for_tests", raising=False)


def own_reward(function: str, **section: object) -> dict[str, object]:
    return {"name": f"stage_rewards_for_tests:{function}", "retries": 0} | section


def rewards_of(run: Run, number: int = 1) -> dict[str, dict[str, object]]:
    table = run.artifact(round_folder(number, "rewards")).read_table(REWARDS)
    return {row["rollout_id"].partition("/")[2]: row for row in table.to_pylist()}


def test_what_is_no_number_never_reaches_an_advantage(tmp_path: Path) -> None:
    texts = {1: {"a": ["1", "none", "3", "nan"], "b": ["2", "inf", "late", "lost"], "c": ["masked", "0", "1", "0.5"]}}
    run = store_run(tmp_path / "run", texts, reward=own_reward("by_text", max_unchecked=0.9))
    metrics = execute(score_rewards.STAGE, run, 1)["metrics"]
    assert metrics["unchecked"] == 5.0
    assert metrics["reward_mean"] == pytest.approx((1 + 3 + 2 + 0 + 1 + 0.5) / 6)
    assert {key: row["verdict"] for key, row in rewards_of(run).items() if row["reward"] is None} == {
        "a/1": "error",
        "a/3": "error",
        "b/1": "error",
        "b/2": "timeout",
        "b/3": "missing",
        "c/0": "unparsable",
    }
    execute(compute_advantages.STAGE, run, 1)
    rows = run.artifact(round_folder(1, "advantages")).read_table(ADVANTAGES).to_pylist()
    advantages = {row["rollout_id"].partition("/")[2]: row for row in rows}
    assert all(math.isfinite(row["advantage"]) for row in rows)
    # The groups' statistics are those of the rewards alone: 1 and 3 in a, the lone 2 in b teaches nothing.
    assert [key for key, row in advantages.items() if row["in_loss"]] == ["a/0", "a/2", "c/1", "c/2", "c/3"]
    assert advantages["a/0"]["group_valid"] == 2
    assert advantages["a/0"]["group_mean"] == 2.0
    assert advantages["a/0"]["advantage"] == -advantages["a/2"]["advantage"] != 0
    assert advantages["b/0"]["advantage"] == advantages["a/1"]["advantage"] == 0.0


def test_a_sample_knows_its_group_and_its_length(tmp_path: Path) -> None:
    texts = {1: {"a": ["x", "yyy"], "b": ["x"]}}
    run = store_run(tmp_path / "run", texts, reward=own_reward("groups"))
    execute(score_rewards.STAGE, run, 1)
    assert {key: row["reward"] for key, row in rewards_of(run).items()} == {"a/0": 2.0, "a/1": 2.0, "b/0": 1.0}
    run = store_run(tmp_path / "other", texts, reward=own_reward("facts_of_a_sample"))
    execute(score_rewards.STAGE, run, 1)
    assert [row["reward"] for row in rewards_of(run).values()] == [1022.0, 3022.0, 1022.0]


MIX = {
    "sources": [
        {"source": "rows.jsonl", "name": "s"},
        {"source": "other.jsonl", "reward": "stage_rewards_for_tests:by_extra", "reward_options": {"times": 2}},
    ]
}


def test_the_rows_of_a_source_meet_its_reward_with_their_extra(tmp_path: Path) -> None:
    texts = {1: {"a": ["\\boxed{42}", "41"], "b": ["x", "late"]}}
    have = {"b": {"source": "other.jsonl", "extra": json.dumps({"mark": 3})}}
    run = store_run(tmp_path / "run", texts, have, data=MIX)
    execute(score_rewards.STAGE, run, 1)
    rows = rewards_of(run)
    assert {key: row["reward"] for key, row in rows.items()} == {"a/0": 1.1, "a/1": 0.0, "b/0": 6.0, "b/1": None}
    assert rows["b/1"]["verdict"] == "timeout"
    assert dict(rows["b/0"]["components"]) == {"stage_rewards_for_tests_by_extra_mark": 6.0}
    assert [name for name, _ in rows["a/0"]["components"]] == ["box", "correct"]


def test_the_rewards_of_sources_are_an_input_where_there_are_any(tmp_path: Path) -> None:
    own, plain = RewardConfig(), store_run(tmp_path / "plain", {1: {"a": ["1"]}})
    assert score_rewards.reward_inputs(plain, plain.config.data, own) == {}

    def found(times: int, **joining: int) -> object:
        own_code.cache_clear()  # its module is another one now and then, as after a restart
        sys.modules.pop("stage_rewards_for_tests", None)
        options = {"reward_options": {"times": times}}
        data = {"sources": [MIX["sources"][0], MIX["sources"][1] | options | joining]}
        run = Run(plain.uri, RunConfig.model_validate({"data": data}))
        there = training_sources_at(run.config.data, 1)
        return score_rewards.reward_inputs(run, there, own).get("source_rewards")

    before = found(2)
    assert before is not None
    assert found(2) == before != found(3)
    assert found(2, from_round=2) is None  # it joins later: round 1 does not depend on it
    (tmp_path / "stage_rewards_for_tests.py").write_text(OWN + "# another\n")
    assert found(2) != before


def test_the_reward_of_a_held_out_source_makes_no_rollout_s_reward_stale() -> None:
    data = DataConfig.model_validate({"eval_sources": [{"source": "mbpp", "split": "test"}]})
    assert training_sources_at(data, 1).eval_sources == []
    assert held_out_sources(data).eval_sources == data.eval_sources


def test_a_broken_checker_stops_the_round_and_only_what_failed_is_scored_again(tmp_path: Path) -> None:
    texts = {1: {"a": ["fine"] * 3 + ["x"], "b": ["x"] * 4, "c": ["x"] * 4, "d": ["fine"] * 4}}
    reward = own_reward("while_up", options={"folder": str(tmp_path)}, max_unchecked=0.4)
    run = store_run(tmp_path / "run", texts, reward=reward)
    (tmp_path / "down").touch()
    with pytest.raises(UserError, match="could not be checked, most often for 'error: no service'") as error:
        execute(score_rewards.STAGE, run, 1)
    # 1 + 4 of 16 are within 40 %; with the third shard 9 are over it, whatever the fourth brings.
    assert "Round 1: 9 of 12 rollouts" in str(error.value)
    assert not (tmp_path / "run/rounds/0001/rewards/manifest.json").exists()
    (tmp_path / "down").unlink()
    (tmp_path / "asked").unlink()
    execute(score_rewards.STAGE, run, 1)
    asked = (tmp_path / "asked").read_text().split()
    assert [identity.split("/")[1] for identity in asked] == ["b"] * 4 + ["c"] * 4 + ["d"] * 4
    found = rewards_of(run)
    assert found["a/3"]["verdict"] == "error"  # within the limit in its shard: masked, and it stays so
    assert [row["reward"] for key, row in found.items() if key[0] in "bcd"] == [1.0] * 12


def test_a_bad_shard_in_a_good_round_is_masked_and_kept(tmp_path: Path) -> None:
    texts = {1: {"a": ["x"] * 2, "b": ["fine"] * 4}}
    reward = own_reward("while_up", options={"folder": str(tmp_path)})
    run = store_run(tmp_path / "run", texts, reward=reward)
    (tmp_path / "down").touch()
    assert execute(score_rewards.STAGE, run, 1)["metrics"]["verdict_error_share"] == pytest.approx(1 / 3)
    assert run.artifact(round_folder(1, "rewards")).condition().done
    assert [row["reward"] for row in rewards_of(run).values()] == [None, None, 1.0, 1.0, 1.0, 1.0]


SMOOTH = {
    "components": {"length": {"reward": "stage_rewards_for_tests:by_text", "weight": 2.0}},
    "smoothing": 0.75,
    "retries": 0,
}
TWO_ROUNDS = {1: {"a": ["1", "3"]}, 2: {"a": ["4", "none"], "b": ["2", "2"]}, 3: {"a": ["2.5", "3.5"]}}


def smoothed(folder: Path) -> Run:
    run = store_run(folder, TWO_ROUNDS, reward=SMOOTH)
    for number in TWO_ROUNDS:
        execute(score_rewards.STAGE, run, number)
    return run


def test_smoothing_goes_from_round_to_round_by_hand(tmp_path: Path) -> None:
    run = smoothed(tmp_path / "run")
    assert [row["reward"] for row in rewards_of(run, 1).values()] == [2.0, 6.0]
    # After round 1: mean 2, variance 1.
    assert [row["reward"] for row in rewards_of(run, 2).values()] == [4.0, None, 0.0, 0.0]
    # Round 2 has 4, 2, 2: mean 8/3, variance 8/9.
    mean, variance = 0.75 * 2 + 0.25 * 8 / 3, 0.75 * 1 + 0.25 * 8 / 9
    state = json.loads((tmp_path / "run/rounds/0002/rewards/smoothing.json").read_text())
    assert state["length"] == {"mean": pytest.approx(mean), "variance": pytest.approx(variance)}
    expected = [2 * (x - mean) / variance**0.5 for x in (2.5, 3.5)]
    assert [row["reward"] for row in rewards_of(run, 3).values()] == pytest.approx(expected)
    assert dict(rewards_of(run, 3)["a/0"]["components"]) == {"length": 2.5}


def test_smoothing_resumes_exactly_and_hangs_on_the_round_before(tmp_path: Path) -> None:
    run, again = smoothed(tmp_path / "run"), smoothed(tmp_path / "again")
    assert digests(tmp_path / "run") == digests(tmp_path / "again")
    (tmp_path / "again/rounds/0002/rewards/manifest.json").unlink()
    execute(score_rewards.STAGE, again, 2)
    assert digests(tmp_path / "run") == digests(tmp_path / "again")
    manifest = json.loads((tmp_path / "run/rounds/0003/rewards/manifest.json").read_text())
    before = run.artifact(round_folder(2, "rewards")).manifest()
    assert before is not None
    assert manifest["parts"]["inputs"]["rewards_before"] == before.digest


def test_without_smoothing_there_is_no_state_and_no_tie_to_the_round_before(tmp_path: Path) -> None:
    run = store_run(tmp_path / "run", TWO_ROUNDS, reward=own_reward("by_text"))
    execute(score_rewards.STAGE, run, 2)
    folder = tmp_path / "run/rounds/0002/rewards"
    assert not (folder / "smoothing.json").exists()
    assert set(json.loads((folder / "manifest.json").read_text())["parts"]["inputs"]) == {"rollouts", "prompts"}


def test_a_round_that_broke_off_ends_with_the_same_bytes(tmp_path: Path) -> None:
    texts = {1: {"a": ["1", "2"], "b": ["3", "4"], "c": ["5", "fine"]}}
    whole = store_run(tmp_path / "whole", texts, reward=own_reward("while_up", options={"folder": str(tmp_path)}))
    execute(score_rewards.STAGE, whole, 1)
    broken = store_run(tmp_path / "broken", texts, reward=own_reward("while_up", options={"folder": str(tmp_path)}))
    (tmp_path / "crash").touch()
    with pytest.raises(UserError, match="OSError: gone"):
        execute(score_rewards.STAGE, broken, 1)
    (tmp_path / "crash").unlink()
    (tmp_path / "asked").unlink()
    execute(score_rewards.STAGE, broken, 1)
    assert "/a/" not in (tmp_path / "asked").read_text()
    assert digests(tmp_path / "whole") == digests(tmp_path / "broken")


def test_the_monitor_speaks_in_metrics_and_names_the_common_answers(tmp_path: Path) -> None:
    texts = {1: {"a": ["\\boxed{7}", "\\boxed{7}", "so it is 42"], "b": ["\\boxed{42}", "7", "none"]}}
    run = store_run(tmp_path / "run", texts)
    metrics = execute(score_rewards.STAGE, run, 1)["metrics"]
    assert metrics["near_duplicate_share"] == pytest.approx(2 / 6)
    assert metrics["top_answer_share"] == pytest.approx(3 / 5)
    assert metrics["distinct_answers"] == 2.0
    assert metrics["format_alone_share"] == pytest.approx(0.2 / 2.3)
    said = json.loads((tmp_path / "run/rounds/0001/rewards/monitor.json").read_text())
    assert said == {"common_answers": [["7", 3 / 5], ["42", 2 / 5]]}
