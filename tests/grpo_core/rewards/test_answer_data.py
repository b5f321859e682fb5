"""Labelled answers and attacks from public suites, through the whole reward as a run would meet them."""

import json

import pytest
from support import DATA

from grpo_core.rewards.score import RewardConfig, build_reward
from grpo_core.rewards.verdict import Sample, Verdict

ANSWERS = DATA / "answers"


def rows(name: str) -> list[dict[str, object]]:
    path = ANSWERS / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return [json.loads(line) for line in path.read_text().splitlines()]


def response_of(row: dict[str, object]) -> str:
    spec = row.get("response_spec")
    if isinstance(spec, list):
        return "".join(text * times for text, times in spec)
    return str(row["response"])


def paid(samples: list[Sample]) -> list[bool]:
    with build_reward(RewardConfig(retries=0)) as reward:
        return [score.verdict is Verdict.OK for score in reward(samples)]


def test_equivalence() -> None:
    cases = rows("equivalence.jsonl")
    samples = [
        Sample(
            str(case["id"]),
            str(case["prediction"]) if case["form"] == "response" else f"\\boxed{{{case['prediction']}}}",
            str(case["gold"]),
        )
        for case in cases
    ]
    outcomes = paid(samples)
    unpaid = [case["id"] for case, outcome in zip(cases, outcomes, strict=True) if case["equivalent"] and not outcome]
    false = [case["id"] for case, outcome in zip(cases, outcomes, strict=True) if outcome and not case["equivalent"]]
    assert false == []
    assert len(unpaid) <= len(cases) // 100, unpaid


def test_attacks() -> None:
    cases = rows("answer_attacks.jsonl")
    samples = [Sample(str(case["id"]), response_of(case), str(case["gold"])) for case in cases]
    wrong = [
        (case["id"], case["why"])
        for case, outcome in zip(cases, paid(samples), strict=True)
        if outcome != case["should_be_correct"]
    ]
    assert wrong == []


def test_problem_golds_are_read_or_say_that_they_cannot_be() -> None:
    path = DATA / "math/gold_problems.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    cases = [json.loads(line) for line in path.read_text().splitlines()]
    samples = [Sample(case["unique_id"], r"\boxed{123456789}", case["answer"]) for case in cases]
    with build_reward(RewardConfig(retries=0)) as reward:
        scores = reward(samples)
    for case, score in zip(cases, scores, strict=True):
        assert score.verdict is (Verdict.WRONG if case["answer"] else Verdict.MISSING), case
        assert (score.reward is None) == (not case["answer"])
