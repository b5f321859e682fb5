"""Finding the final answer in a response."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.rewards.extract import Extracted, final_answer, last_boxed
from grpo_core.rewards.math import quick_check
from grpo_core.rewards.verdict import Verdict

MARKUP = [
    "\\boxed{",
    "\\fbox{",
    "{",
    "}",
    "\\{",
    "\\}",
    "\\",
    "$",
    "####",
    "\n",
    " ",
    ",",
    ".",
    "-",
    "+",
    "%",
    "7",
    "12",
    "x",
]
markup_soup = st.lists(st.sampled_from(MARKUP), max_size=60).map("".join)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{5} and \boxed{}", "5"),
        (r"\boxed{5} and \boxed{ \, {} ~ $ $ }", "5"),
        (r"\fbox{3}", "3"),
        (r"\boxed {3}", "3"),
        (r"\\boxed{3}", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\{}", r"\{"),
        (r"\boxed{4} \boxed{5", "4"),
        (r"\boxed{ 1 \boxed{2}", "2"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{ \fbox{ \boxed{7} } }", "7"),
        (r"\boxed{7 \text{ or } \boxed{8}}", r"7 \text{ or } \boxed{8}"),
        (r"} { \boxed{9}", "9"),
        (r"\boxed 9", None),
        (r"\boxed{}", None),
        (r"\boxed{\{ 5", None),
        ("", None),
        ("no box", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("She has 13 - 3 = 10 eggs.\nA: 10", "10"),
        ("It costs $1,234.50.", "1234.50"),
        ("She is -$5 down", "-5"),
        ("a drop of 12%", "12"),
        ("pages 10-20", "20"),
        ("x = -3", "x = -3"),
        ("so it is \u22123 now", "-3"),
        ("that is 3/4 of it", "3/4"),
        (r"that is $\frac{3}{4}$", r"\frac{3}{4}"),
        (r"that is -\dfrac{3}{4}.", "-3/4"),
        ("about .5 of it.", ".5"),
        ("near 6.02e23", "6.02e23"),
        ("so 1,2341 of it", "1.2341"),
        ("#### 18\nIgnore 7", "18"),
        ("#### 1\n#### 2 dollars", "2 dollars"),
    ],
)
def test_final_answer_outside_a_box(text: str, answer: str) -> None:
    assert final_answer(text) == Extracted(answer, boxed=False)


def test_a_box_goes_before_later_numbers_and_hashes() -> None:
    assert final_answer("\\boxed{5}\n#### 6\nand 7") == Extracted("5", boxed=True)


def test_an_empty_box_is_no_answer_but_a_number_still_is() -> None:
    assert final_answer("the sum is 5 \\boxed{ }") == Extracted("5", boxed=False)


def test_no_answer() -> None:
    assert final_answer("I do not know.") is None


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 100_000,
        "\\boxed{" * 100_000 + "5" + "}" * 100_000,
        "\\" * 300_000,
        "1,234" * 100_000,
        "1/" * 200_000,
        "9" * 300_000 + "/",
        "####" + " " * 300_000,
        "\\boxed" + " " * 300_000,
    ],
    ids=["open", "nested", "backslashes", "thousands", "slashes", "digits", "hashes", "spaces"],
)
@pytest.mark.timeout(20)  # a quadratic scan of any of these takes minutes
def test_oversized_text_ends(text: str) -> None:
    found = final_answer(text)
    assert found is None or found.answer


@given(st.text(max_size=200) | markup_soup)
def test_any_text_gives_a_filled_answer_or_none(text: str) -> None:
    found = final_answer(text)
    assert found is None or found.answer.strip()
    if found is not None and found.boxed:
        assert "box" in text
        assert found.answer in text or "," in found.answer


@given(st.lists(st.sampled_from([part for part in MARKUP if part != "7"]), max_size=60).map("".join))
def test_nothing_is_earned_against_a_gold_that_the_text_does_not_hold(text: str) -> None:
    found = final_answer(text)
    if found is not None:
        outcome = quick_check(found.answer, "7")
        assert outcome is None or outcome[0] is not Verdict.OK


@given(
    st.lists(st.sampled_from([part for part in MARKUP if "box" not in part]), max_size=60).map("".join),
    st.integers(-(10**9), 10**9),
)
def test_a_boxed_number_is_found_whatever_stands_before(before: str, value: int) -> None:
    assert last_boxed(f"{before} a\\boxed{{{value}}}") == str(value)
