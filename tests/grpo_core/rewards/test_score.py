"""Rewards by name, a user's own function, fingerprints."""

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from grpo_core.errors import UserError
from grpo_core.rewards.score import Reward, RewardConfig, build_reward, reward_fingerprint
from grpo_core.rewards.verdict import Sample, Score, Verdict
from grpo_core.rewards.workers import close_pools

ANSWERS = Path(__file__).resolve().parents[3] / "../shared/data/answers"


@pytest.fixture(autouse=True, scope="module")
def no_workers_left() -> Iterator[None]:
    yield
    close_pools()


def samples(*pairs: tuple[str, str]) -> list[Sample]:
    return [Sample(str(index), response, gold) for index, (response, gold) in enumerate(pairs)]


def rows(name: str) -> list[dict[str, object]]:
    path = ANSWERS / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def one(response: str, gold: str, config: RewardConfig | None = None) -> Score:
    (score,) = build_reward(config or RewardConfig())(samples((response, gold)))
    return score


@pytest.mark.parametrize(
    ("response", "gold", "verdict", "reward", "extracted"),
    [
        (r"so \boxed{42}", "42", Verdict.OK, 1.1, "42"),
        ("so 42", "42", Verdict.OK, 1.0, "42"),
        (r"so \boxed{41}", "42", Verdict.WRONG, 0.1, "41"),
        ("so 41", "42", Verdict.WRONG, 0.0, "41"),
        (r"42 \boxed{}", "42", Verdict.OK, 1.0, "42"),
        ("no idea", "42", Verdict.UNPARSABLE, 0.0, None),
        (r"\boxed{\frac{1}{}", "42", Verdict.UNPARSABLE, 0.0, None),
        (r"\boxed{.}", "42", Verdict.UNPARSABLE, 0.0, "."),
        (r"\boxed{42}", " ", Verdict.MISSING, None, None),
        (r"\boxed{(1+x)^2}", "x^2+2x+1", Verdict.OK, 1.1, "(1+x)^2"),
    ],
)
def test_math_reward(response: str, gold: str, verdict: Verdict, reward: float | None, extracted: str | None) -> None:
    score = one(response, gold)
    assert (score.verdict, score.reward, score.extracted) == (verdict, reward, extracted)
    assert reward is None or score.reward == sum(score.components.values())


def test_the_amounts_come_from_the_config() -> None:
    config = RewardConfig(correct=2.0, box_bonus=0.5)
    assert one(r"\boxed{42}", "42", config).components == {"correct": 2.0, "box": 0.5}
    assert one(r"\boxed{42}", "41", config).components == {"correct": 0.0, "box": 0.5}


def test_unparsable_can_be_masked() -> None:
    assert one("no idea", "42", RewardConfig(unparsable="mask")).reward is None
    assert one("41", "42", RewardConfig(unparsable="mask")).reward == 0.0


def test_a_timeout_is_no_reward_and_says_so() -> None:
    score = one(r"\boxed{\int_0^1 e^{-x^2} \sin(x^3) \ln(1+x^5) dx}", "7", RewardConfig(timeout_seconds=1.0, retries=0))
    assert (score.verdict, score.reward, score.components) == (Verdict.TIMEOUT, None, {})
    assert score.extracted == r"\int_0^1 e^{-x^2} \sin(x^3) \ln(1+x^5) dx"
    assert score.seconds > 0.9


def test_a_long_answer_is_cut_in_the_record() -> None:
    score = one("\\boxed{" + "7" * 1_000_000 + "}", "42")
    assert score.verdict is Verdict.UNPARSABLE
    assert score.extracted is not None
    assert len(score.extracted) == 2_000


def test_scores_are_the_same_in_a_thread() -> None:
    batch = samples((r"\boxed{(1+x)^3}", "(x+1)^3"), ("5", "5"), (r"\boxed{\sqrt{8}}", r"2\sqrt{2}"))
    found: list[Verdict] = []
    thread = threading.Thread(target=lambda: found.extend(s.verdict for s in build_reward(RewardConfig())(batch)))
    thread.start()
    thread.join(60)
    assert found == [Verdict.OK] * 3


@pytest.mark.parametrize("name", ["gsm8k_model_solutions.jsonl", "qwen25_math_cot_100x8.jsonl"])
def test_every_labelled_response_is_judged_as_its_label(name: str) -> None:
    data = rows(name)
    scores = build_reward(RewardConfig(timeout_seconds=10.0))(
        [Sample(str(row["id"]), str(row["response"]), str(row["gold"])) for row in data]
    )
    wrong = [
        row["id"] for row, score in zip(data, scores, strict=True) if (score.verdict is Verdict.OK) != row["correct"]
    ]
    assert wrong == []
    assert all(score.reward is not None for score in scores)


def test_attacks_on_time_and_code_end_and_earn_nothing() -> None:
    data = [row for row in rows("answer_attacks.jsonl") if row["kind"] in ("hang", "code_injection")]
    texts = []
    for row in data:
        spec = row.get("response_spec")
        texts.append("".join(text * count for text, count in spec) if isinstance(spec, list) else str(row["response"]))
    reward = build_reward(RewardConfig(timeout_seconds=1.0, retries=0))
    scores = reward(samples(*((text, str(row["gold"])) for text, row in zip(texts, data, strict=True))))
    paid = [
        row["id"]
        for row, s in zip(data, scores, strict=True)
        if s.verdict is Verdict.OK and not row["should_be_correct"]
    ]
    assert len(data) == 23
    assert paid == []


OWN = """
import numpy
from grpo_core.rewards.verdict import Score, Verdict

def by_length(samples):
    return [float(len(s.response)) for s in samples]

def mixed(samples):
    return [Score(Verdict.WRONG, 0.25, {"style": 0.25}), numpy.float32(0.5), True, 0, -1.0, None, float("nan"),
            float("inf"), Score(Verdict.OK, float("nan"))][: len(samples)]

def short(samples):
    return [1.0]

def broken(samples):
    raise KeyError("tests")

def texts(samples):
    return ["1" for _ in samples]

not_a_function = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_reward_for_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_reward_for_tests", raising=False)
    return "own_reward_for_tests"


def own_reward(module: str, function: str) -> Reward:
    return build_reward(RewardConfig(name=f"{module}:{function}", retries=0))


def test_own_function_of_numbers(own: str) -> None:
    scores = own_reward(own, "by_length")(samples(("abc", ""), ("", "")))
    assert [(s.verdict, s.reward, s.components) for s in scores] == [
        (Verdict.OK, 3.0, {"reward": 3.0}),
        (Verdict.WRONG, 0.0, {"reward": 0.0}),
    ]


def test_own_function_of_all_that_it_may_return(own: str) -> None:
    scores: Sequence[Score] = own_reward(own, "mixed")(samples(*[("", "")] * 9))
    assert [(s.verdict, s.reward) for s in scores] == [
        (Verdict.WRONG, 0.25),
        (Verdict.OK, 0.5),
        (Verdict.OK, 1.0),
        (Verdict.WRONG, 0.0),
        (Verdict.WRONG, -1.0),
        (Verdict.ERROR, None),
        (Verdict.ERROR, None),
        (Verdict.ERROR, None),
        (Verdict.ERROR, None),
    ]
    assert scores[0].components == {"style": 0.25}
    assert all(s.reward is None or math.isfinite(s.reward) for s in scores)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("short", r"own_reward_for_tests:short returned 1 values for 2 samples"),
        ("broken", r"own_reward_for_tests:broken failed with KeyError: 'tests'"),
        ("texts", r"own_reward_for_tests:texts returned a str"),
    ],
)
def test_own_function_gone_wrong_is_named(own: str, function: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        own_reward(own, function)(samples(("a", ""), ("b", "")))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("maths", r"reward.name 'maths' is not known: use a built-in \(.*math, "),
        ("no_such_module_here:f", "there is no module no_such_module_here"),
        ("own_reward_for_tests:nothing", "has no function nothing"),
        ("own_reward_for_tests:not_a_function", "has no function not_a_function"),
        (":f", "not of the form"),
        ("broken_import_for_tests:f", "No module named 'absent_library'"),
        ("broken_syntax_for_tests:f", "fails to import \\(SyntaxError"),
    ],
)
def test_a_bad_name_is_explained(own: str, name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "broken_import_for_tests.py").write_text("import absent_library")
    (tmp_path / "broken_syntax_for_tests.py").write_text("def f(:")
    with pytest.raises(UserError, match=words):
        build_reward(RewardConfig(name=name))
    with pytest.raises(UserError, match=words):
        reward_fingerprint(RewardConfig(name=name))


def test_fingerprint_holds_what_changes_a_score() -> None:
    base = reward_fingerprint(RewardConfig())
    assert reward_fingerprint(RewardConfig(workers=3)) == base
    for other in (
        {"correct": 2.0},
        {"box_bonus": 0.0},
        {"timeout_seconds": 3.0},
        {"retries": 0},
        {"unparsable": "mask"},
    ):
        assert reward_fingerprint(RewardConfig.model_validate(other)) != base


def test_fingerprint_is_that_of_the_code_which_this_process_runs(own: str, tmp_path: Path) -> None:
    config = RewardConfig(name=f"{own}:by_length")
    before = reward_fingerprint(config)
    (tmp_path / "own_reward_for_tests.py").write_text(OWN + "\n# another\n")
    # The module is imported already: scores still come from the code before the edit.
    assert reward_fingerprint(config) == before
    code = f"from grpo_core.rewards.score import *; print(reward_fingerprint(RewardConfig(name={config.name!r})))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    started_later = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert len(started_later.stdout.strip()) == 64
    assert started_later.stdout.strip() != before


@pytest.mark.parametrize(
    "wrong", [{"reward": 1}, {"timeout_seconds": 0}, {"workers": 0}, {"correct": math.inf}, {"unparsable": "no"}]
)
def test_config_refuses(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RewardConfig.model_validate(wrong)
