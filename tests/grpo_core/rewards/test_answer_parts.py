"""The parts that answers are read with: values, sets, units, number words, characters, structure."""

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.rewards.boxes import boxed_answers, content, filled_boxes
from grpo_core.rewards.characters import ascii_math
from grpo_core.rewards.choices import Choice, choice
from grpo_core.rewards.evaluate import ratio, same_value
from grpo_core.rewards.exact import InexactError, UndefinedError, exact
from grpo_core.rewards.expression import parse
from grpo_core.rewards.kinds import Listing, Matrix, Ratio, Relation, Scalar, Words
from grpo_core.rewards.number_words import words_value
from grpo_core.rewards.realsets import Piece, combined, point, same_set
from grpo_core.rewards.splitting import BrokenError
from grpo_core.rewards.structure import read
from grpo_core.rewards.tokens import TooLargeError, UnreadableError
from grpo_core.rewards.units import conversion, read_unit, without_unit


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2+3*4", 14),
        ("-2^2", -4),
        ("(-2)^2", 4),
        ("2^3^2", 512),
        ("1/2/2", Fraction(1, 4)),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac1{72}", Fraction(1, 72)),
        (r"2\frac12", Fraction(5, 2)),
        (r"2\cdot\frac12", 1),
        ("3 1/2", Fraction(7, 2)),
        ("1.5e3", 1500),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"0.\dot{1}\dot{2}", Fraction(12, 99)),
        ("8^{2/3}", 4),
        (r"\sqrt[3]{-27}", -3),
        ("4!", 24),
        (r"\binom{5}{2}", 10),
        (r"\lfloor -1.5 \rfloor", -2),
        ("|2-5|", 3),
        (r"2^{1000000000} \bmod 7", 2),
        (r"\sum_{k=1}^{4} k^2", 30),
        ("50%", Fraction(1, 2)),
        (r"\max(2, 7, 3)", 7),
    ],
)
def test_exact_values(text: str, value: Fraction) -> None:
    assert exact(parse(text)) == value


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (r"\sqrt{2}", InexactError),
        ("x", InexactError),
        ("1/0", UndefinedError),
        ("0^{-1}", UndefinedError),
        ("9^{9^{9}}", TooLargeError),
        ("(9!)!", TooLargeError),
        ("1 2", UnreadableError),
        ("---1", TooLargeError),
        ("", UnreadableError),
        ("hello", UnreadableError),
        ("(1", UnreadableError),
        ("(" * 100 + "1" + ")" * 100, TooLargeError),
        ("9" * 3_000, TooLargeError),
    ],
)
def test_what_has_no_exact_value(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        exact(parse(text))


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (r"\sin^2 x + \cos^2 x", "1", True),
        (r"\frac{x^2-1}{x-1}", "x+1", True),
        (r"\sqrt{x^2}", "|x|", True),
        (r"\sqrt{x^2}", "x", False),
        (r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}", True),
        ("v^2_0", "v_0^2", True),
        (r"\sqrt{2}+10^{-200}", r"\sqrt{2}", False),
        ("x+10^{-100}", "x", False),
        (r"e^{i\pi}", "-1", True),
        (r"9^{9^{9}}", "42", False),
        (r"\frac{1}{0}", "1", False),
    ],
)
def test_same_value(first: str, second: str, same: bool) -> None:
    assert same_value(parse(first), parse(second)) is same


def test_ratio_is_a_constant_or_none() -> None:
    assert ratio(parse("2x+4"), parse("x+2")) == 2
    assert ratio(parse("x-1"), parse("1-x")) == -1
    assert ratio(parse("x^2"), parse("x")) is None


def interval(low: float, high: float, low_in: bool, high_in: bool) -> Piece:
    return Piece(mpmath.mpf(low), mpmath.mpf(high), low_in, high_in)


def test_sets_of_reals() -> None:
    left, right = (interval(0, 2, True, False),), (interval(1, 3, True, True),)
    assert same_set(combined(left, right, "union"), (interval(0, 3, True, True),))
    assert same_set(combined(left, right, "intersection"), (interval(1, 2, True, False),))
    assert same_set(combined(left, right, "difference"), (interval(0, 1, True, False),))
    assert same_set((interval(0, 1, True, False), point(mpmath.mpf(1))), (interval(0, 1, True, True),))
    assert not same_set((interval(0, 1, True, False),), (interval(0, 1, True, True),))
    assert combined(left, left, "difference") == ()


pieces = st.builds(
    lambda low, width, low_in, high_in: interval(low, low + width, low_in, high_in),
    st.integers(-3, 3),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(pieces, max_size=3).map(tuple), st.lists(pieces, max_size=3).map(tuple))
def test_a_union_less_one_side_is_the_rest_of_the_other(first: tuple[Piece, ...], second: tuple[Piece, ...]) -> None:
    rest = combined(combined(first, second, "union"), second, "difference")
    assert same_set(rest, combined(first, second, "difference"))
    assert same_set(combined(rest, combined(first, second, "intersection"), "union"), first)


@pytest.mark.parametrize(
    ("text", "dimension", "factor"),
    [
        ("cm", "length", Fraction(1, 100)),
        ("square feet", "area", Fraction(3048, 10_000) ** 2),
        ("cm^2", "area", Fraction(1, 10_000)),
        ("feet squared", "area", Fraction(3048, 10_000) ** 2),
        ("cubic meters", "volume", 1),
        ("liters", "volume", Fraction(1, 1000)),
        ("km/h", "speed", Fraction(10, 36)),
        ("miles per hour", "speed", Fraction(1609344, 3_600_000)),
        ("cents", "dollar", Fraction(1, 100)),
        ("小时", "time", 3600),
        ("apples", "", 1),
        ("red balls", "", 1),
    ],
)
def test_units(text: str, dimension: str, factor: Fraction) -> None:
    unit = read_unit(text)
    assert unit is not None
    assert (unit.dimension, unit.factor) == (dimension, factor)


@pytest.mark.parametrize("text", ["and", "x", "or 4", "q", "is wrong", "if even"])
def test_no_units(text: str) -> None:
    assert read_unit(text) is None


def test_quantities() -> None:
    assert without_unit("12 cm")[0] == "12"
    assert without_unit("$12")[0] == "12"
    assert without_unit("3 or 4") == ("3 or 4", None)
    assert without_unit("2x") == ("2x", None)
    assert conversion(read_unit("m"), read_unit("km")) == 1000
    assert conversion(read_unit("m"), read_unit("kg")) is None
    assert conversion(None, read_unit("kg")) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("seventeen", 17),
        ("ninety-nine", 99),
        ("two thousand and five", 2005),
        ("three hundred thousand", 300_000),
        ("minus four", -4),
        ("three quarters", Fraction(3, 4)),
        ("three and a half", Fraction(7, 2)),
        ("2.5 million", 2_500_000),
        ("三百零五", 305),
        ("十二", 12),
        ("三分之二", Fraction(2, 3)),
        ("负七", -7),
        ("one two", None),
        ("twenty twelve", None),
        ("house", None),
        ("", None),
    ],
)
def test_number_words(text: str, value: Fraction | None) -> None:
    assert words_value(text) == value


@pytest.mark.parametrize(
    ("text", "ascii_text"),
    [
        ("x²", "x^{2}"),
        ("２√3", r"2\sqrt{3}"),
        ("4\u200b2", "42"),
        ("\u202e24", "24"),
        ("٤٢", "42"),
        ("О", "О"),
        ("3½", r"3\frac{1}{2}"),
    ],
)
def test_characters(text: str, ascii_text: str) -> None:
    assert ascii_math(text) == ascii_text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(B)", Choice("B")),
        ("b)", Choice("B")),
        ("B. Paris", Choice("B", "Paris")),
        ("B: A small town", Choice("B", "A small town")),
        ("A or B", None),
        ("(A) or (B)", None),
        ("A, B", None),
        ("AB", None),
        ("12", None),
    ],
)
def test_choices(text: str, found: Choice | None) -> None:
    assert choice(text) == found


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("5", Scalar),
        ("x+1", Scalar),
        ("1, 2", Listing),
        (r"\{1, 2\}", Listing),
        ("[1, 2)", Listing),
        (r"3 \pm 1", Listing),
        ("x = 5", Relation),
        ("1 < x < 2", Relation),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", Matrix),
        ("3:4", Ratio),
        ("Monday", Words),
    ],
)
def test_kinds(text: str, kind: type) -> None:
    assert isinstance(read(text), kind)


@pytest.mark.parametrize("text", ["(1, 2", "1, 2)", r"\{1, 2", "{{1}"])
def test_broken_brackets(text: str) -> None:
    with pytest.raises(BrokenError):
        read(text)


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (r"\boxed{1} and \boxed{2}", ["1", "2"]),
        (r"\boxed{1} wait \boxed{2}", ["2"]),
        (r"\boxed{1}, not \boxed{2}", ["1"]),
        (r"not \boxed{1}", []),
        (r"\boxed{\boxed{3}}", ["3"]),
    ],
)
def test_boxes_that_count(text: str, answers: list[str]) -> None:
    boxes, _ = filled_boxes(text)
    assert [content(text, box) for box in boxed_answers(text, boxes)] == answers
