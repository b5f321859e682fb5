"""No text whatever crashes a check, hangs it, or earns against a gold that it does not hold."""

import contextlib
import string
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_core.rewards.equality import same
from grpo_core.rewards.extract import final_answer
from grpo_core.rewards.math import quick_check
from grpo_core.rewards.normalise import canonical
from grpo_core.rewards.structure import read
from grpo_core.rewards.tokens import TooLargeError, UnreadableError
from grpo_core.rewards.verdict import Verdict
from grpo_core.rewards.workers import WorkerPool

GOLDS = [
    "7391",
    r"\frac{7391}{8}",
    r"7391\text{ cm}",
    r"\{7391, 5\}",
    "(7391, 5)",
    "[5, 7391)",
    "x = 7391",
    "7391%",
    "Zanzibar",
]
PIECES = [
    *(
        r"\boxed{",
        r"\frac{",
        r"\sqrt{",
        r"\text{",
        "^{",
        "_{",
        "{",
        "}",
        r"\{",
        r"\}",
        "(",
        ")",
        "[",
        "]",
        "|",
        "$",
        r"\(",
        r"\)",
    ),
    *(
        "The answer is ",
        "Answer: ",
        "#### ",
        "<answer>",
        "</answer>",
        "<think>",
        "</think>",
        "答案是",
        " not ",
        " or ",
        " and ",
    ),
    *(
        "1",
        "2",
        "4",
        "05",
        "6.2",
        "1,000",
        "x",
        "y",
        "n",
        "A",
        "B",
        "pi",
        "e",
        "i",
        "½",
        "²",
        "√",
        "−",
        "％",
        "∞",
        "一",
    ),
    *(
        "+",
        "-",
        "*",
        "/",
        "=",
        "<",
        r"\le ",
        ",",
        ";",
        ":",
        ".",
        "!",
        "%",
        r"\pm ",
        r"\cup ",
        r"\infty",
        r"\in ",
        "°",
        " cm",
        " ",
        "\n",
    ),
    *(
        r"\sin ",
        r"\log_",
        r"\overline{",
        r"\begin{pmatrix}",
        r"\end{pmatrix}",
        "&",
        "\\\\",
        r"\ldots",
        r"\sum_{",
        "U",
        "<|im_end|>",
    ),
]
soup = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
texts = st.text(max_size=120).filter(lambda text: "7391" not in text) | soup
golds = st.sampled_from(GOLDS)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(workers=2, timeout_seconds=1.0, retries=0)
    yield pool
    pool.close()


@settings(max_examples=300, deadline=None)
@given(texts, golds)
def test_in_the_caller(text: str, gold: str) -> None:
    found = final_answer(text)
    for answer in (text, *([] if found is None else [found.answer])):
        outcome = quick_check(answer, gold)
        assert outcome is None or outcome[0] is not Verdict.OK
        try:
            reading = read(canonical(answer))
        except (UnreadableError, TooLargeError):
            continue
        with contextlib.suppress(TooLargeError):
            assert not same(read(canonical(gold)), reading)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(soup, min_size=4, max_size=4), golds)
def test_in_a_worker(pool: WorkerPool, answers: list[str], gold: str) -> None:
    results = pool.check([(answer, gold) for answer in answers])
    assert all(result.verdict in (Verdict.WRONG, Verdict.UNPARSABLE, Verdict.TIMEOUT) for result in results), results


@settings(max_examples=100, deadline=None)
@given(texts)
def test_an_answer_is_itself(text: str) -> None:
    outcome = quick_check(text, text)
    assert outcome is not None
    assert outcome[0] is (Verdict.OK if canonical(text) else Verdict.ERROR) or len(text) > 2_000


@settings(max_examples=200, deadline=None)
@given(st.fractions(-1000, 1000, max_denominator=97), st.fractions(-1000, 1000, max_denominator=97))
def test_fractions_in_several_spellings(first: object, second: object) -> None:
    spellings = {str(first), *_spelt(first)}
    for answer in spellings:
        outcome = quick_check(answer, str(second))
        verdict = outcome[0] if outcome is not None else None
        if verdict is None:
            verdict = Verdict.OK if same(read(canonical(str(second))), read(canonical(answer))) else Verdict.WRONG
        assert (verdict is Verdict.OK) == (first == second), (answer, second)


def _spelt(value: object) -> Iterator[str]:
    top, _, bottom = str(value).partition("/")
    yield rf"\dfrac{{{top}}}{{{bottom or 1}}}"
    yield rf"${top}/{bottom or 1}$"
    yield f"{top}/{bottom or 1}".translate({ord(digit): chr(0xFF10 + int(digit)) for digit in string.digits})
    if bottom and abs(int(top)) > int(bottom):
        whole, rest = divmod(abs(int(top)), int(bottom))
        if rest:
            yield rf"{'-' if top.startswith('-') else ''}{whole}\frac{{{rest}}}{{{bottom}}}"


@pytest.mark.timeout(60)  # a quadratic scan of any of these takes minutes
@pytest.mark.parametrize(
    "text",
    [
        "answer" + "_" * 200_000 + "x",
        "\nQ:" * 100_000,
        "#### 1\n" + "\nQuestion" * 100_000,
        "The answer is " * 50_000,
        "$a$ and " * 50_000,
        "<answer>" * 50_000,
        "<think>" * 100_000,
        r"\boxed{1}, " * 50_000,
        "not " * 100_000 + r"\boxed{1}",
        "1,1" * 100_000,
        ". " * 200_000 + "x",
        "(" * 200_000,
        "½" * 100_000,
        "\\text{" * 100_000,
        r"\(" * 100_000,
        "1 / " * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_oversized_text_ends(text: str) -> None:
    found = final_answer(text)
    for answer in (text, text[:2_000], "" if found is None else found.answer):
        quick_check(answer, "7391")
        try:
            read(canonical(answer[:2_000]))
        except (UnreadableError, TooLargeError):
            continue
