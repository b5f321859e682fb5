import pytest

from grpo_core.prompts.contamination import EvaluationIndex
from grpo_core.prompts.filters_text import tokens_of

PROBLEM = (
    "A robe takes 2 bolts of blue fiber and half that much white fiber, and the tailor has 7 robes to sew before the "
    "fair. How many bolts in total does he need?"
)


def _index(*prompts: str, ngram: int = 8, share: float | None = 0.7) -> EvaluationIndex:
    index = EvaluationIndex(ngram, share, 0.8)
    for place, prompt in enumerate(prompts):
        index.add(f"row {place} of test", tokens_of(prompt), "21")
    return index


@pytest.mark.parametrize(
    "training",
    [
        PROBLEM,
        PROBLEM.upper(),
        f"Here is a nice one that I found in a book of old riddles: {PROBLEM} Explain every step to a child.",
        f"Solve both. 1) What is 3 + 4? 2) {PROBLEM}",
        PROBLEM[: -len(" How many bolts in total does he need?")],
    ],
)
def test_a_copy_of_an_evaluation_prompt_is_found(training: str) -> None:
    leak = _index("What is the capital of France, please?", PROBLEM).find(tokens_of(training), "another gold")
    assert leak is not None
    assert leak.name == "row 1 of test"


def test_a_near_duplicate_of_the_same_gold_is_found() -> None:
    training = tokens_of(PROBLEM.replace("the tailor", "our tailor").replace("he need", "she need"))
    assert _index(PROBLEM).find(training, "21") is not None
    assert _index(PROBLEM).find(training, "22") is None


@pytest.mark.parametrize(
    "training",
    [
        "The tailor has 7 apples, a robe and a bolt. How many apples does he need?",
        PROBLEM.replace("7 robes", "8 robes"),
        PROBLEM.replace("2 bolts", "5 bolts"),
        "What is 12 + 13?",
        "",
    ],
)
def test_another_problem_of_the_same_template_is_no_leak(training: str) -> None:
    index = _index(PROBLEM, "What is 12 + 14?")
    assert index.find(tokens_of(training), "1") is None


def test_a_solution_that_quotes_an_evaluation_prompt_gives_it_away() -> None:
    solution = tokens_of(f"This is like: {PROBLEM} There the answer was 21, so here it is 42.")
    leak = _index(PROBLEM).find(tokens_of("How many bolts do twice as many robes take?"), "42", solution)
    assert leak is not None
    assert "in the solution" in leak.why


def test_short_prompts_count_whole() -> None:
    index = _index("Compute $2^{10} - 3$.")
    assert index.find(tokens_of(r"compute \(2^10-3\)"), "1021") is not None
    assert index.find(tokens_of("Please help me with this one: compute 2^10 - 3. Show your work."), "1") is not None
    assert index.find(tokens_of("Compute $2^{10} - 3 + 4$."), "1025") is None
    assert index.find(tokens_of("Compute $2^{10}$."), "1024") is None


def test_words_that_many_evaluation_prompts_share_are_a_template() -> None:
    frame = (
        "Read the following riddle with care, think about it as long as you like, and answer in one word: what is {}?"
    )
    index = _index(
        *(frame.format(word) for word in ("red and round", "cold and wet", "tall and green", "old and grey"))
    )
    assert index.find(tokens_of(frame.format("small and black")), "21") is None
    assert index.find(tokens_of(frame.format("cold and wet")), "1") is not None


def test_without_a_share_only_equal_prompts_are_leaks() -> None:
    index = _index(PROBLEM, share=None)
    assert index.find(tokens_of(PROBLEM.lower()), "1") is not None
    assert index.find(tokens_of(f"Solve: {PROBLEM}"), "1") is None


def test_the_share_is_of_the_shorter_text() -> None:
    # 10 words make 3 runs of 8; the training row holds the first 9 of them, so 2.
    words = ["ba", "be", "bi", "bo", "bu", "da", "de", "di", "do", "du"]
    index = _index(" ".join(words), share=0.66)
    training = tokens_of(" ".join([*words[:9], "xe", "xi", "xo"]))
    assert index.find(training, "21") is not None
    assert _index(" ".join(words), share=0.67).find(training, "21") is None
