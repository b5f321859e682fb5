import json

import pytest
from support import DATA

from grpo_core.prompts.gold import extract_gold
from grpo_core.prompts.gold_check import GoldCheck, GoldRow, final_boxes
from grpo_core.rewards.config import ComponentConfig, RewardConfig

MATH = GoldCheck(RewardConfig())
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")


def _reason(gold: str, solution: str | None = None, check: GoldCheck = MATH, **keys: object) -> str:
    (found,) = check.check([GoldRow("How many?", gold, solution, **keys)])  # type: ignore[arg-type]
    return found.reason


@pytest.mark.parametrize(
    ("solution", "boxes"),
    [
        ("no box", []),
        (r"an empty \boxed{}", []),
        (r"so $x = \boxed{3}$.", ["3"]),
        (r"$\boxed{1}$ and $\boxed{9}$", ["1", "9"]),
        (r"$g(x) = \boxed{2x+1}$ or $g(x)=\boxed{-2x-1}.$", ["2x+1", "-2x-1"]),
        (r"$(x,y) = \boxed{(1,2)}$ or $(x,y) = \boxed{(2,1)}$", ["(1,2)", "(2,1)"]),
        (r"\boxed{30^\circ}$, $\boxed{60^\circ}$, and $\boxed{90^\circ}", [r"30^\circ", r"60^\circ", r"90^\circ"]),
        (r"\begin{align*} x &= \boxed{1}, \\ y &= \boxed{2} \end{align*}", ["1", "2"]),
        (r"\boxed{5} \text{ or } \boxed{7}", ["5", "7"]),
        (r"$\boxed{3}$ cm and $\boxed{4}$ cm", ["3", "4"]),
        (r"The least is $\boxed{3}$ and the greatest is $\boxed{4}$.", ["3", "4"]),
        # The same answer, found or written twice.
        (r"so it is $\boxed{7}$. OR we count, and get $\boxed{7}$.", ["7"]),
        (r"this is $\boxed{28}$ or $\boxed{28_9}$.", ["28_9"]),
        # Steps on the way.
        (r"The first is $\boxed{30^\circ}.$ The other two are $\boxed{75^\circ, 75^\circ}$", [r"75^\circ, 75^\circ"]),
        (r"$\log_2 4 = \boxed{2}$, so $\log_2(4^2) = \boxed{4}$", ["4"]),
        (r"$x = \boxed{2}$, and therefore we are done with the first part. Now $y = \boxed{3}$", ["3"]),
        (r"x &= \boxed{12} \\ &= \boxed{3 \cdot 4}", [r"3 \cdot 4"]),
    ],
)  # fmt: skip
def test_the_answer_of_a_solution_is_its_last_box_and_what_is_joined_to_it(solution: str, boxes: list[str]) -> None:
    assert final_boxes(solution) == boxes


@pytest.mark.parametrize(
    ("gold", "solution", "reason"),
    [
        ("3", None, ""),
        ("3", r"so $\boxed{3}$", ""),
        (r"\frac{1}{2}", r"so $\boxed{0.5}$", ""),
        ("9", r"$\boxed{1}$ and $\boxed{9}$", "ambiguous_gold"),
        ("1, 9", r"$\boxed{1}$ and $\boxed{9}$", ""),
        ("9", r"$\boxed{9}$ and again $\boxed{9}$", ""),
        ("5 and 10", r"(a) It is $\boxed{5}$. For (b) we double it: $\boxed{10}$.", ""),
        ("5", r"(a) It is $\boxed{5}$. For (b) we double it: $\boxed{10}$.", "gold_disagrees"),
        ("2 - b", r"$\boxed{-b+2}$, or $\boxed{2 - b}$", ""),
        ("28_9", r"$\boxed{28}$ or $\boxed{28_9}$", ""),
        ("4", r"so $\boxed{3}$", "gold_disagrees"),
        ("72", "48 + 24 = 72\n#### 72", ""),
        ("71", "48 + 24 = 72\n#### 72", "gold_disagrees"),
        (r"9", r"$y^2 = \boxed 9$", ""),
        ("5", "There are 2 ways for each of 3, and that is all there is to say.", ""),
        (r"\frac{1}{2", None, "gold_unverified"),
        (r"\text{}", None, "gold_unverified"),
        # What follows the box is no other answer.
        ("901", r"is $\boxed{901}$. We check: $10 \cdot 901 = 9010 \equiv 1 \pmod{1001}$.", ""),
        (r"75\%", r"So $\frac{90}{120} = \boxed{75\%}$ is not filler.", ""),
    ],
)
def test_a_gold_must_be_paid_by_itself_and_by_its_solution(gold: str, solution: str | None, reason: str) -> None:
    assert _reason(gold, solution) == reason


def test_a_reward_that_compares_with_no_gold_has_no_say() -> None:
    own = GoldCheck(RewardConfig(name="support:odd_bytes"), {"m": RewardConfig(name="math")})
    (found,) = own.check([GoldRow("How many?", "3", r"$\boxed{4}$")])
    assert (found.reason, found.checked, found.failed) == ("", False, False)
    assert own.fingerprint(["other"]) == {}
    assert list(own.fingerprint(["other", "m"])) == ["m"]
    assert _reason("3", r"$\boxed{4}$", own, source="m") == "gold_disagrees"


def test_of_components_the_one_that_gives_the_verdict_checks() -> None:
    parts = {"form": ComponentConfig(reward="format"), "right": ComponentConfig(reward="math")}
    check = GoldCheck(RewardConfig(components=parts, verdict_from="right"))
    assert _reason("3", r"$\boxed{4}$", check) == "gold_disagrees"
    assert _reason("3", r"$\boxed{4}$", GoldCheck(RewardConfig(components=parts))) == ""


def test_what_is_paid_is_no_part_of_the_fingerprint() -> None:
    assert GoldCheck(RewardConfig(correct=2.0)).fingerprint(["a"]) == MATH.fingerprint(["a"])


def test_two_sources_of_one_reward_have_a_key_each() -> None:
    def key(seconds: float) -> dict[str, str]:
        others = {"b": RewardConfig(name="code", options={"timeout_seconds": 5})}
        return GoldCheck(RewardConfig(name="code", options={"timeout_seconds": seconds}), others).fingerprint(
            ["a", "b"]
        )

    assert key(5) != key(6)


def test_golds_are_compared_as_the_reward_does() -> None:
    rows = [GoldRow("q", "0.5"), GoldRow("q", "1/3"), GoldRow("q", "a  b", source="own")]
    check = GoldCheck(RewardConfig(), {"own": RewardConfig(name="support:odd_bytes")})
    assert check.same([(r"\frac12", rows[0]), ("1/2", rows[1]), ("a b", rows[2])]) == [True, False, True]


def test_a_reference_must_pass_its_own_tests() -> None:
    prompt = 'def double(number):\n    """Twice the number."""\n'
    extra = {"tests": ["assert double(2) == 4"], "entry_point": "double"}
    check = GoldCheck(RewardConfig(name="code"))
    solutions = ("    return 2 * number\n", f"{prompt}    return number + number\n", "    return number + 1\n", None)
    rows = [GoldRow(prompt, "assert double(2) == 4", solution, extra) for solution in solutions]
    found = check.check(rows)
    assert [finding.reason for finding in found] == ["", "", "gold_disagrees", ""]
    assert [finding.checked for finding in found] == [True, True, True, False]
    for unusable in ("assert f(", "assert True", "def check(f): assert f() is None"):
        assert _reason("x", "def f(): pass", check, extra={"tests": [unusable]}) == "gold_unverified"
    for reference in ("def f(): pass", None):
        assert _reason("x", reference, check, extra={"tests": []}) == "gold_unverified"
        assert _reason("x", reference, check, extra={"tests": [1]}) == "gold_unverified"


@needs_data
def test_the_incomplete_golds_of_math_are_found_and_no_other() -> None:
    listed = {json.loads(line)["unique_id"] for line in (DATA / "math/gold_problems.jsonl").open()}
    rows = [json.loads(line) for name in ("train", "math500") for line in (DATA / f"math/{name}.jsonl").open()]
    empty = [row["unique_id"] for row in rows if not extract_gold(row["answer"], "auto")]
    filled = [row for row in rows if row["unique_id"] not in empty]
    found = MATH.check([GoldRow(row["problem"], row["answer"], row["solution"]) for row in filled])
    refused = [row["unique_id"] for row, finding in zip(filled, found, strict=True) if finding.reason]
    assert all(finding.checked for finding in found)
    assert {*empty, *refused} == listed & {row["unique_id"] for row in rows}
    assert (len(empty), len(refused)) == (2, 11)


@needs_data
def test_no_gold_of_gsm8k_is_refused() -> None:
    rows = [json.loads(line) for line in (DATA / "gsm8k/test.jsonl").open()]
    golds = [extract_gold(row["answer"], "gsm8k") for row in rows]
    checked = [GoldRow(row["question"], gold or "", row["answer"]) for row, gold in zip(rows, golds, strict=True)]
    assert {finding.reason for finding in MATH.check(checked)} == {""}
