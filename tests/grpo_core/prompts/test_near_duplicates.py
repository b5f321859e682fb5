import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.prompts.duplicates import NearDuplicates
from grpo_core.prompts.filters_text import tokens_of

STORY = (
    "Josie received $50 as a gift. She plans to buy two cassette tapes that cost $9 each and a headphone set that "
    "costs $25. How much money will she have left?"
)
FORMULA = r"Find all real $x$ for which $\frac{1}{2} x^2 - 3x = \left(x + 1\right) \cdot 4$ holds, and add them up."


def _near(first: str, second: str, gold: str = "7", other: str = "7", threshold: float = 0.8) -> bool:
    index = NearDuplicates(threshold)
    index.add("first", tokens_of(first), gold)
    return index.find(tokens_of(second), other) is not None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (STORY, STORY.upper()),
        (STORY, STORY.replace("Josie", "Amanda")),
        (STORY, STORY.replace("two", "2").replace("left?", "left over?")),
        (STORY, f"Problem 12. {STORY}"),
        (STORY, f"3. {STORY}"),
        (STORY, f"{STORY} Please reason step by step, and put your final answer within \\boxed{{}}."),
        (STORY, STORY.replace(" ", "\n  ").replace(".", " .")),
        (FORMULA, FORMULA.replace(r"\frac{1}{2}", r"\dfrac12").replace("$", "")),
        (FORMULA, FORMULA.replace("$x$", r"\(x\)").replace(r"\left(x + 1\right) \cdot", r"(x+1)\times")),
        (FORMULA, FORMULA.replace(" - ", "-").replace("^2", "^{2}").replace("and add", "then add")),
        ("A box holds 1,000 well-known books.", "A box holds 1000 well known books!"),
    ],
)
def test_the_same_problem_in_other_clothes_is_found(first: str, second: str) -> None:
    assert _near(first, second)
    assert _near(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("What is 12 + 13?", "What is 12 + 14?"),
        ("What is 12 + 13?", "What is 12 - 13?"),
        ("What is 12 + 13?", "What is 13 + 12?"),
        ("What is 12 + (-13)?", "What is 12 + 13?"),
        (STORY, STORY.replace("$9", "$8")),
        (STORY, STORY.replace("two", "three")),
        (STORY, STORY.replace("How much money", "How much more money")),
        (FORMULA, FORMULA.replace("3x", "3y")),
        (FORMULA, FORMULA.replace("- 3x", "+ 3x")),
        (FORMULA, FORMULA.replace(r"\cdot 4", r"\cdot 4!")),
        ("Find the largest root of $x^2 - 5x + 6 = 0$.", "Find the smallest root of $x^2 - 5x + 6 = 0$."),
        ("How many orders have the letters of the word PROOF?", "How many orders have the letters of the word RADII?"),
    ],
)
def test_another_problem_of_the_same_template_is_none(first: str, second: str) -> None:
    assert not _near(first, second)


def test_two_golds_are_two_problems() -> None:
    assert not _near(STORY, STORY.replace("Josie", "Amanda"), "7", "8")
    assert _near(STORY, STORY.replace("Josie", "Amanda"), r"\frac 12", r"\frac12")


def test_the_similarity_is_that_of_the_words_and_pairs() -> None:
    # Words {1 2 pp qq} of {1 2 pp qq ss tt}, pairs {1 2, 2 pp, pp qq} of {1 2, 2 pp, pp qq, qq ss, qq tt}: 7 of 11.
    first, second = (tokens_of(f"1 2 pp qq {last}") for last in ("ss", "tt"))
    for threshold, found in ((7 / 11, True), (7 / 11 + 0.01, False)):
        index = NearDuplicates(threshold)
        index.add("first", first, "1")
        near = index.find(second, "1")
        assert (near is not None) is found
        assert near is None or near.similarity == 7 / 11


def test_a_text_without_numbers_must_be_nearer() -> None:
    frame = "Read the following riddle with care, think as long as you like, then answer in one word: what is {}?"
    assert not _near(frame.format("small and black"), frame.format("cold and wet"))
    assert _near(frame.format("small and black"), frame.format("small and black").replace(":", " -").upper())


def test_many_prompts_without_numbers_are_told_apart_and_found_again() -> None:
    index = NearDuplicates(0.8)
    words = [f"{first}{second}" for first in "bcdfghjklm" for second in ("ab", "ed", "if", "og", "up")]
    texts = [" ".join(words[(place * 7 + step * step) % 50] for step in range(12)) for place in range(150)]
    for place, text in enumerate(dict.fromkeys(texts)):
        index.add(str(place), tokens_of(text), "1")
    for place, text in enumerate(dict.fromkeys(texts)):
        near = index.find(tokens_of(f"  {text.upper()}!"), "1")
        assert near is not None
        assert (near.name, near.similarity) == (str(place), 1.0)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=80))
def test_tokens_survive_a_change_of_clothes(text: str) -> None:
    tokens = tokens_of(text)
    assert tokens_of(f"  {text}\n").words == tokens.words
    assert set(tokens.numbers) <= set(tokens.signature) <= set(tokens.words)
