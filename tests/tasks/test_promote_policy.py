"""Who is champion after each round, what later rounds make of it, and what survives."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from judged_run import judge, open_run_of, write_evaluation, write_policy
from support import digests

from tasks import promote_policy
from tasks.promotion_record import champion_round, decision_about, promotion_sentence
from tasks.retention import apply_retention
from tasks.run import Run, round_folder
from tasks.stage import InputMissing, execute
from tasks.start_policy import start_of

STAGE = promote_policy.STAGE
EVERY = {"evaluation": {"every": 1}}
BACK = {"resamples": 500, "go_back": "when_refused"}


def decisions(run: Run, succession: str = "registry") -> dict[int, tuple[str, int]]:
    found = {n: decision_about(run, n) for n in run.rounds_on_disk()}
    return {n: (d[succession]["decision"], d[succession]["champion_after"]["round"]) for n, d in found.items() if d}


def state(run: Run, number: int) -> str:
    return STAGE.condition(run, number, STAGE.fingerprint(run, number)).state


def test_the_champion_moves_only_when_it_is_beaten_beyond_noise(tmp_path):
    run = open_run_of(tmp_path / "run", **EVERY)
    # Two more of twenty: a gain in 1 - 0.9^20 = 88 % of the resamples. Eight more are a gain in nearly all.
    judge(run, {0: 4, 1: 6, 2: 12, 3: 11, 4: 20})
    assert decisions(run) == {
        0: ("first", 0),
        1: ("refused", 0),
        2: ("promoted", 2),
        3: ("refused", 2),
        4: ("promoted", 4),
    }
    record = decision_about(run, 2)
    policies = {n: run.artifact(round_folder(n, "policy")).manifest().digest for n in range(5)}
    told = record["registry"]
    assert (record["round"], record["policy"]) == (2, policies[2])
    assert told["champion_before"] == {"round": 0, "policy": policies[0]}
    assert told["champion_after"] == {"round": 2, "policy": policies[2]}
    assert told["figures"]["difference"] == pytest.approx(0.4)
    assert told["figures"]["prompts"] == 20
    assert 0.1 < told["figures"]["low"] < 0.4 < told["figures"]["high"] < 0.7
    assert "60.0% against 20.0% of round 0" in told["reason"]
    assert promotion_sentence(run, 2) == f"promoted to champion: {told['reason']}"
    metrics = run.artifact(round_folder(3, "promotion")).manifest().metrics
    assert (metrics["promoted"], metrics["champion_round"], metrics["candidate_score"]) == (0.0, 2.0, 0.55)


def test_by_default_a_round_starts_from_the_one_before_and_reads_nothing_else(tmp_path):
    run = open_run_of(tmp_path / "run", **EVERY)
    judge(run, {0: 20, 1: 0})
    shutil.rmtree(tmp_path / "run/rounds/0001/promotion")
    assert [start_of(run, n) for n in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize(("go_back", "starts"), [("when_refused", [0, 0, 2, 2, 4]), ("when_worse", [0, 1, 2, 2, 4])])
def test_a_round_goes_back_to_the_champion(tmp_path, go_back, starts):
    run = open_run_of(tmp_path / "run", **EVERY, promotion={"resamples": 500, "go_back": go_back})
    judge(run, {0: 10, 1: 10, 2: 16, 3: 2, 4: 20})
    assert [start_of(run, n) for n in range(1, 6)] == starts


def test_only_after_an_evaluation_that_the_config_asks_for(tmp_path):
    run = open_run_of(tmp_path / "run", evaluation={"every": 2}, promotion=BACK)
    judge(run, {0: 10, 1: 0, 2: 0, 3: 0})
    assert decisions(run) == {0: ("first", 0), 2: ("refused", 0)}
    assert [start_of(run, n) for n in (1, 2, 3, 4)] == [0, 1, 0, 3]


def test_until_it_is_decided_the_next_round_can_t_start(tmp_path):
    run = open_run_of(tmp_path / "run", **EVERY, promotion=BACK)
    judge(run, {0: 10})
    write_policy(run, 1)
    with pytest.raises(InputMissing, match="rounds/0001/promotion"):
        start_of(run, 2)
    # One whose evaluation is lost for good is taken as it is.
    run.artifact(round_folder(1, "policy")).retire()
    assert not promote_policy.is_due(run, 1)
    assert start_of(run, 2) == 1


def test_a_run_that_ended_and_goes_on_trains_as_one_that_never_ended(tmp_path):
    at_once = open_run_of(tmp_path / "at-once", evaluation={"every": 3}, rounds=4, promotion=BACK)
    judge(at_once, {0: 4, 3: 12, 4: 11})
    ended = open_run_of(tmp_path / "ended", evaluation={"every": 3}, rounds=2, promotion=BACK)
    judge(ended, {0: 4, 2: 20})
    # The end's own evaluation makes a champion in the registry, which nothing that is trained later depends on.
    assert decisions(ended) == {0: ("first", 0), 2: ("promoted", 2)}
    assert champion_round(ended, 3, "registry") == 2
    assert champion_round(ended, 3, "training") == 0
    longer = open_run_of(tmp_path / "ended", evaluation={"every": 3}, rounds=4, promotion=BACK)
    assert not promote_policy.is_due(longer, 2)
    judge(longer, {3: 12, 4: 11})
    assert [start_of(longer, n) for n in range(1, 6)] == [start_of(at_once, n) for n in range(1, 6)] == [0, 1, 2, 3, 4]
    for number in (3, 4):
        assert decision_about(longer, number)["training"] == decision_about(at_once, number)["training"]
    # In the registry the later policies had to beat the one of the end.
    assert decisions(longer)[3] == ("refused", 2)
    assert decisions(at_once)[3] == ("promoted", 3)


def test_done_again_it_has_the_same_bytes_and_nothing_is_stale(tmp_path):
    run = open_run_of(tmp_path / "run", **EVERY)
    judge(run, {0: 4, 1: 6, 2: 12, 3: 11})
    before = digests(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/rounds/0002/promotion")
    execute(STAGE, run, 2)
    assert digests(tmp_path / "run") == before
    assert {state(run, n) for n in range(4)} == {"done"}
    # Names, weights and what is done with a refusal are no part of a decision; its thresholds are.
    other = open_run_of(tmp_path / "run", **EVERY, promotion=BACK | {"model": "m", "upload": True})
    assert {state(other, n) for n in range(4)} == {"done"}
    stricter = open_run_of(tmp_path / "run", **EVERY, promotion={"resamples": 500, "confidence": 0.8})
    assert {state(stricter, n) for n in range(4)} == {"stale"}


def test_another_policy_or_evaluation_makes_it_stale(tmp_path):
    run = open_run_of(tmp_path / "run", **EVERY)
    judge(run, {0: 4, 1: 6, 2: 12})
    write_evaluation(run, 0, 11)  # the champion's
    assert (state(run, 1), state(run, 2)) == ("stale", "stale")
    execute(STAGE, run, 0)
    execute(STAGE, run, 1)
    execute(STAGE, run, 2)
    assert decisions(run) == {0: ("first", 0), 1: ("refused", 0), 2: ("refused", 0)}
    write_policy(run, 1, "trained anew")
    assert decision_about(run, 1) is None
    assert state(run, 2) == "stale"  # what was decided about a policy that is no more counts for nothing


def test_a_lost_evaluation_of_the_champion_refuses(tmp_path):
    run = open_run_of(tmp_path / "run", **EVERY)
    judge(run, {0: 4})
    run.artifact(round_folder(0, "policy")).retire()
    shutil.rmtree(tmp_path / "run/rounds/0000/evaluation")
    judge(run, {1: 20})
    assert decisions(run) == {0: ("first", 0), 1: ("refused", 0)}
    assert decision_about(run, 1)["registry"]["reason"] == "the evaluation of round 0, the champion, is lost"


@pytest.mark.parametrize("name", ["evaluation.parquet", "manifest.json"])
def test_what_was_decided_against_a_champion_stays_when_its_evaluation_is_lost_later(tmp_path, name):
    run = open_run_of(tmp_path / "run", **EVERY, promotion=BACK)
    judge(run, {0: 2, 1: 12, 2: 20, 3: 1})
    before = {n: decision_about(run, n) for n in range(4)}
    run.artifact(round_folder(1, "policy")).retire()
    (tmp_path / "run/rounds/0001/evaluation" / name).write_text("harmed")
    assert not promote_policy.is_due(run, 1)
    assert [state(run, n) for n in (0, 2, 3)] == ["done"] * 3
    assert {n: decision_about(run, n) for n in range(4)} == before
    assert [start_of(run, n) for n in (2, 3, 4)] == [1, 2, 2]


def test_failed_checks_are_left_out(tmp_path):
    run = open_run_of(tmp_path / "run", **EVERY)
    judge(run, {0: 0})
    write_policy(run, 1)
    write_evaluation(run, 1, 20, failed=range(15))
    execute(STAGE, run, 1)
    figures = decision_about(run, 1)["registry"]["figures"]
    assert (figures["prompts"], figures["left_out"]) == (5, 15)


def kept(run: Run, kind: str) -> list[int]:
    found = [n for n in run.rounds_on_disk() if run.artifact(round_folder(n, kind)).manifest()]
    return [n for n in found if not run.artifact(round_folder(n, kind)).is_retired]


@pytest.mark.parametrize(("promotion", "states"), [({"resamples": 500}, [5, 6]), (BACK, [1, 5, 6])])
def test_retention_keeps_the_champion_and_what_a_round_may_go_back_to(tmp_path, promotion, states):
    run = open_run_of(tmp_path / "run", **EVERY, rounds=6, promotion=promotion)
    # Round 3 did best, but not beyond noise; a run without promotions keeps that one alone.
    judge(run, {0: 2, 1: 12, 2: 1, 3: 13, 4: 1, 5: 1, 6: 1})
    apply_retention(run, 6)
    assert decisions(run)[6] == ("refused", 1)
    assert kept(run, "policy") == [0, 1, 3, 5, 6]
    assert kept(run, "trainer_state") == states


def test_turned_off_nothing_is_decided(tmp_path):
    run = open_run_of(tmp_path / "run", **EVERY, promotion={"enabled": False})
    judge(run, {0: 2, 1: 12})
    assert decisions(run) == {}


def test_the_record_is_plain_json(tmp_path):
    run = open_run_of(tmp_path / "run", **EVERY)
    judge(run, {0: 2, 1: 12})
    path: Path = tmp_path / "run/rounds/0001/promotion/decision.json"
    told: dict[str, Any] = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert set(told) == {"round", "policy", "registry", "training"}
    assert told["registry"] == told["training"]
