"""The page shows whatever a model wrote as text, and stays small."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.report.page import number, shown


def test_a_long_text_keeps_both_ends_and_says_what_is_missing() -> None:
    text = "a" * 600 + "b" * 1000 + "c" * 300
    assert shown(text) == "a" * 600 + "\n[… 1,000 characters left out …]\n" + "c" * 300
    assert shown("a" * 990) == "a" * 990  # a tenth more is not worth a word


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x00b", "a\\u0000b"),
        ("a\u202eb", "a\\u202eb"),  # turns the direction of writing
        ("a\u200bb", "a\\u200bb"),
        ("a\ud800b", "a\\ud800b"),
        ("a\tb\nc é 漢", "a\tb\nc é 漢"),
        ("a\rb", "a\\u000db"),
    ],
)
def test_what_can_not_be_seen_is_spelled_out(text: str, expected: str) -> None:
    assert shown(text) == expected


@settings(deadline=None)
@given(st.text(st.characters(), max_size=3000))
def test_any_text_can_be_written_and_is_bounded(text: str) -> None:
    assert len(shown(text).encode()) <= 6 * 1000 + 60


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "none"),
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (0.1, "0.1"),
        (-0.75, "-0.75"),
        (100.0, "100"),
        (1 / 3, "0.333"),
    ],
)
def test_figures(value: float | None, expected: str) -> None:
    assert number(value) == expected
