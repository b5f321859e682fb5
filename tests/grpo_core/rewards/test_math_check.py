"""The exact check, and what it leaves to math-verify."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.rewards.math import MAX_ANSWER_CHARS, build_only, full_check, quick_check
from grpo_core.rewards.normalise import bare, number, plain
from grpo_core.rewards.verdict import Verdict


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (" 42. ", "42"),
        ("$42$", "42"),
        (r"\(42\)", "42"),
        (r"\[ 42 \].", "42"),
        ("**42**", "42"),
        (r"\text{42}", "42"),
        (r"\$42", r"\$42"),
        ("\uff14\uff12\u3002", "42"),
        ("42 dollars", "42 dollars"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        ("14{,}916", "14,916"),
        (r"10,\!080", "10,080"),
        ("\u22125", "-5"),
        ("1 1/2", "1 1/2"),
        ("5!", "5!"),
        (r"\begin{pmatrix}1 \\ 2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        ("$1$ or $2$", "$1$or$2$"),
    ],
)
def test_plain(answer: str, expected: str) -> None:
    assert plain(answer) == expected


@given(st.text(max_size=80))
def test_plain_spelling_is_stable_and_never_crashes(text: str) -> None:
    assert bare(bare(text)) == bare(text)
    number(plain(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        ("007", Fraction(7)),
        ("-1,234.50", Fraction(-2469, 2)),
        ("1 000", Fraction(1000)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("1.5e3", Fraction(1500)),
        ("3/4", Fraction(3, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\frac34", Fraction(-3, 4)),
        ("1/0", None),
        ("1,2", None),
        ("1 1/2", None),
        ("x", None),
        ("", None),
        ("\uff11\uff12", None),  # full-width digits
        ("9" * 101, None),
    ],
)
def test_number(text: str, value: Fraction | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("42", "42", Verdict.OK),
        ("42.00", "42", Verdict.OK),
        ("1,234", "1234", Verdict.OK),
        ("50%", "50", Verdict.OK),
        ("0.5", "1/2", Verdict.OK),
        ("0.1", r"\frac{1}{10}", Verdict.OK),
        ("x^2", "x^2", Verdict.OK),
        ("41", "42", Verdict.WRONG),
        ("0.1234567", "0.1234568", None),
        ("0.333333", "1/3", None),
        ("0.5", "50%", None),
        (r"\sqrt{2}", "2", None),
        (".", "42", Verdict.UNPARSABLE),
        ("7" * (MAX_ANSWER_CHARS + 1), "42", Verdict.UNPARSABLE),
        ("42", "7" * (MAX_ANSWER_CHARS + 1), Verdict.ERROR),
    ],
)
def test_quick_check(answer: str, gold: str, verdict: Verdict | None) -> None:
    outcome = quick_check(answer, gold)
    assert (None if outcome is None else outcome[0]) is verdict


@given(st.fractions(-1000, 1000, max_denominator=999), st.fractions(-1000, 1000, max_denominator=999))
def test_quick_check_of_quotients_agrees_with_exact_arithmetic(first: Fraction, second: Fraction) -> None:
    outcome = quick_check(f"{first.numerator}/{first.denominator}", f"{second.numerator}/{second.denominator}")
    if first == second:
        assert outcome == (Verdict.OK, "")
    else:
        assert outcome is None or outcome[0] is Verdict.WRONG


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", Verdict.OK),
        ("(x-1)(x+1)", "x^2-1", Verdict.OK),
        (r"\{3, 2, 1\}", r"\{1, 2, 3\}", Verdict.OK),
        (r"12\text{ cm}", "12", Verdict.OK),
        ("x = 5", "5", Verdict.OK),
        (r"\sqrt{3}", r"\sqrt{2}", Verdict.WRONG),
        ("x + 2", "x + 1", Verdict.WRONG),
        (r"\frac{1}{", "5", Verdict.UNPARSABLE),
        ("5", r"\frac{1}{", Verdict.ERROR),
    ],
)
def test_full_check(answer: str, gold: str, verdict: Verdict) -> None:
    assert full_check(answer, gold)[0] is verdict


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("Integer (5 )", 5),
        ("Float ('2.5' )", 2.5),
        ("((Integer (1 )+sqrt (Integer (9 )))/Integer (2 ))", 2),
        ("-Integer (2 )**Integer (3 )", -8),
    ],
)
def test_what_a_parser_asks_for_is_built(code: str, value: float) -> None:
    assert build_only(code) == value


@pytest.mark.parametrize(
    "code",
    [
        "__import__('os')",
        "Float('1').__class__",
        "(lambda: 1)()",
        "[1][0]",
        "open('/etc/passwd')",
        "Symbol('x', real=True)",
        "getattr(E, 'x')",
        compile("1", "", "eval"),
    ],
)
def test_nothing_else_is(code: object) -> None:
    with pytest.raises(ValueError, match="never"):
        build_only(code)
