"""The reasoning-gym reward: answers found, marked by their set's own scorer, never run as code."""

import ast
import json
from typing import Any

import pytest

from grpo_core.errors import UserError
from grpo_core.prompts.config import SourceConfig
from grpo_core.prompts.sources import load_rows
from grpo_core.rewards.reasoning_gym import gym_answer
from grpo_core.rewards.score import RewardConfig, build_reward, reward_fingerprint
from grpo_core.rewards.verdict import Sample, Score, Verdict

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")

TASK = {
    "dataset": "spiral_matrix",
    "entry": {"question": "q", "answer": "1 2 3 6 5 4", "metadata": {}},
}
# Their entries come without an answer, and show none either: many are right, and the scorer tells.
WITHOUT_ANSWER = {"boxnet", "rush_hour"}


def score(samples: list[Sample], **options: Any) -> list[Score]:
    config = RewardConfig(name="reasoning-gym", options={"workers": 1, "timeout_seconds": 60.0, **options})
    with build_reward(config) as reward:
        return list(reward(samples))


def rows(name: str, limit: int = 2, **options: Any) -> list[Sample]:
    """A sample of the gold of each row, its extra as a run's table keeps it."""
    source = SourceConfig(source=f"reasoning-gym:{name}", limit=limit, options=options)
    return [
        Sample(
            f"{name}/{row.index}",
            f"<answer>{row.gold}</answer>",
            str(row.gold),
            extra=json.loads(json.dumps(row.extra)),
        )
        for row in load_rows(source, 3)
    ]


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>it is <answer>1</answer></think>so <answer> 2 \n3 </answer>", "2 \n3"),
        ("<answer>1</answer> or rather <answer>2</answer>", "2"),
        (r"<answer>$\boxed{ x }$</answer>", "x"),
        (r"<answer>\boxed{1} and \boxed{2}</answer>", r"\boxed{1} and \boxed{2}"),
        (r"It is \boxed{17}.", "17"),
        ("The answer is 5.", "5"),
        ("<think>still <answer>1</answer>", None),
        ("<answer></answer>", None),
        ("", None),
    ],
)
def test_the_answer_of_a_response(response: str, answer: str | None) -> None:
    assert gym_answer(response) == answer


def test_golds_of_many_kinds_of_set_are_right() -> None:
    # Scorers of their own: tuples compared (arc), Python's and sympy's eval, examples in place of an answer.
    names = (
        "arc_1d", "base_conversion", "binary_matrix", "bitwise_arithmetic", "countdown", "graph_color",
        "knights_knaves", "n_queens", "number_sorting", "polynomial_multiplication", "propositional_logic", "puzzle24",
        "rearc", "rubiks_cube", "simple_integration", "sokoban", "spiral_matrix", "string_insertion", "tower_of_hanoi",
    )  # fmt: skip
    samples = [sample for name in names for sample in rows(name)]
    assert score(rows("rush_hour", 1))[0].verdict is Verdict.MISSING
    assert {s.id: f.detail for s, f in zip(samples, score(samples), strict=True) if f.reward != 1.0} == {}
    assert all(len(rows(name)) == 2 for name in ("gsm_symbolic", "codeio"))  # their entries hold fractions and the like


@pytest.mark.slow
def test_the_gold_of_every_set_is_right() -> None:
    from reasoning_gym.factory import DATASETS

    samples = [sample for name in sorted(set(DATASETS) - {"composite"}) for sample in rows(name, 1)]
    found = zip(samples, score(samples), strict=True)
    failed = {s.id.partition("/")[0]: f.verdict for s, f in found if f.reward != 1.0}
    assert len(samples) > 90
    assert failed == dict.fromkeys(WITHOUT_ANSWER, Verdict.MISSING)  # their placeholder is not marked at all


def test_options_reach_the_set_and_its_scorer() -> None:
    (sample,) = rows("chain_sum", 1, min_terms=6, max_terms=6)
    assert sample.extra["options"] == {"min_terms": 6, "max_terms": 6}
    assert ast.literal_eval(str(sample.extra["entry"]))["metadata"]["num_terms"] == 6
    with pytest.raises(UserError, match=r"data\.options: reasoning-gym's 'chain_sum' has no option 'terms'; it knows"):
        rows("chain_sum", 1, terms=6)
    with pytest.raises(UserError, match=r"no option 'size'.*data\.limit for the size"):
        rows("chain_sum", 1, size=6)
    with pytest.raises(UserError, match=r"can't make 'chain_sum' .*; change data\.options"):
        rows("chain_sum", 1, min_terms=6, max_terms=2)


def test_marks_below_one_are_wrong_and_paid() -> None:
    right, listed, other, none = score(
        [
            Sample("0", "<answer>1 2 3 6 5 4</answer>", "", extra=TASK),
            Sample("1", "<answer>[1, 2, 3, 6, 5, 4]</answer>", "", extra=TASK),
            Sample("2", "<answer>4 5</answer>", "", extra=TASK),
            Sample("3", "I can't say", "", extra=TASK),
        ]
    )
    assert (right.verdict, right.reward) == (Verdict.OK, 1.0)
    assert (listed.verdict, listed.reward, listed.detail) == (Verdict.WRONG, 0.1, "marked 0.1 by spiral_matrix")
    assert (other.verdict, other.reward) == (Verdict.WRONG, 0.0)
    assert (none.verdict, none.reward) == (Verdict.UNPARSABLE, 0.0)


def test_no_answer_is_run_as_code() -> None:
    # Each of these scorers calls eval, and is paid 0.1, 0.1 and 1 for it where the answer may be a program.
    forged = {
        "spiral_matrix": "entry['answer'].split()",
        "binary_matrix": "[row.split() for row in entry['answer'].splitlines()]",
        "string_insertion": "list(entry['answer'])",
    }
    samples = [
        Sample(name, f"<answer>{text}</answer>", "", extra=rows(name, 1)[0].extra) for name, text in forged.items()
    ]
    (sample,) = rows("polynomial_multiplication", 1)
    whole = f"<answer>__import__('sympy').sympify({sample.gold!r})</answer>"
    samples.append(Sample("poly", whole, "", extra=sample.extra))
    assert [found.reward for found in score(samples)] == [0.0, 0.0, 0.0, pytest.approx(0.0, abs=0.06)]


def test_what_is_no_mark_is_never_zero() -> None:
    broken = {**TASK, "entry": {"question": "q", "metadata": {}}}
    hard = {"dataset": "puzzle24", "entry": {"question": "q", "answer": "1", "metadata": {"numbers": [9]}}}
    failed, late, no_task = score(
        [
            Sample("0", "<answer>1</answer>", "", extra=broken),
            Sample("1", "<answer>factorial(9**9)</answer>", "", extra=hard),
            Sample("2", "<answer>1</answer>", ""),
        ],
        timeout_seconds=1.0,
        retries=0,
    )
    assert (failed.verdict, failed.reward) == (Verdict.ERROR, None)
    assert "KeyError" in failed.detail
    assert (late.verdict, late.reward) == (Verdict.TIMEOUT, None)
    assert (no_task.verdict, no_task.reward) == (Verdict.MISSING, None)


def test_how_it_is_marked_is_in_its_fingerprint_and_how_fast_is_not() -> None:
    def fingerprint(**options: Any) -> str:
        return reward_fingerprint(RewardConfig(name="reasoning-gym", options=options))

    assert fingerprint() == fingerprint(workers=3, retries=2)
    assert fingerprint() != fingerprint(unparsable="mask")
