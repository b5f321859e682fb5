import math
from datetime import date
from decimal import Decimal

import pytest

from grpo_core.prompts.gold import NotTextError, as_text, extract_gold, gold_key


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (math.nan, None),
        (math.inf, None),
        ("  two words\n", "two words"),
        (" ", ""),
        (7, "7"),
        (12345678901234567890123, "12345678901234567890123"),
        (51.0, "51"),
        (-0.5, "-0.5"),
        (1e300, "1e+300"),
        (True, "True"),
        (Decimal("1.50"), "1.50"),
        (date(2024, 1, 2), "2024-01-02"),
        ("x\ud800y", "x\ufffdy"),
        ("\ud83d\ude00", "\U0001f600"),
    ],
)
def test_cells_become_text(value: object, text: str | None) -> None:
    assert as_text(value) == text


@pytest.mark.parametrize("value", [["5"], {"answer": 5}, b"5"])
def test_what_is_no_text_is_refused_by_its_type(value: object) -> None:
    with pytest.raises(NotTextError, match=f"a {type(value).__name__}, not text"):
        as_text(value)


@pytest.mark.parametrize(
    ("text", "gold_format", "gold"),
    [
        ("He has 48/2 = <<48/2=24>>24.\n#### 72", "auto", "72"),
        ("#### 1\nmore\n####   -1,234,567.50  \n", "auto", "-1234567.50"),
        ("#### $1,200", "gsm8k", "$1200"),
        ("#### (1, 2)", "gsm8k", "(1, 2)"),
        ("####\n", "auto", None),
        ("72", "gsm8k", None),
        (r"so $a+b=\boxed{\frac{1}{2}}$, not \boxed{}", "auto", r"\frac{1}{2}"),
        (r"first \boxed{1}, then \fbox{ 2 }", "boxed", "2"),
        (r"$y^2 = \boxed 9$.", "auto", "9"),
        (r"\boxed{}", "auto", None),
        (r"\boxed{3", "auto", None),
        ("9", "boxed", None),
        (r"#### 5 and \boxed{6}", "auto", r"5 and \boxed{6}"),
        (r"\boxed{6}", "plain", r"\boxed{6}"),
        ("  8 apples ", "auto", "8 apples"),
        ("   ", "plain", None),
    ],
)
def test_gold_is_found_by_its_format(text: str, gold_format: str, gold: str | None) -> None:
    assert extract_gold(text, gold_format) == gold  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("19", "19.0", True),
        ("1/2", "0.50", True),
        (r"\frac{1}{2}", "2/4", True),
        ("1,234", "1234", True),
        ("x + 1", "X+1", True),
        ("1/0", "2/0", False),
        ("1e999999999", "2e999999999", False),
        ("(1,2)", "12", False),
        ("19", "-19", False),
        ("9" * 200, "9" * 200 + ".0", False),
    ],
)
def test_golds_that_are_plainly_one_answer(one: str, other: str, same: bool) -> None:
    assert (gold_key(one) == gold_key(other)) is same
