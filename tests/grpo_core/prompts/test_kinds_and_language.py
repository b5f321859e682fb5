import json

import pytest
from support import DATA

from grpo_core.errors import UserError
from grpo_core.prompts.kinds import is_multiple_choice, is_proof
from grpo_core.prompts.language import foreign


@pytest.mark.parametrize(
    "prompt",
    [
        "Prove that there are infinitely many primes.",
        "Let $n$ be odd. Show that $n^2 - 1$ is divisible by 8.",
        "Let $a, b > 0$. Please prove $a + b \\ge 2\\sqrt{ab}$.",
    ],
)
def test_proofs(prompt: str) -> None:
    assert is_proof(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        "Show that $n^2 = 9$ has two roots and find their sum.",
        "Anna wants to prove a theorem in 3 days. How many hours a day does she have?",
        "Find the proof mark of a spirit of 40 percent.",
        "The approve rating is 3. What is its square?",
    ],
)
def test_what_asks_for_a_value_is_no_proof(prompt: str) -> None:
    assert not is_proof(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        "How many?\n(A) 1 (B) 2 (C) 3 (D) 4",
        r"How many? $\textbf{(A)}\ 110 \qquad \textbf{(B)}\ 143 \qquad \textbf{(C)}\ 165$",
        "Which is it?\nA. one\nB. two\nC. three",
        "Which is it?\nA) one\nB) two\nC) three",
        "Which of these is prime? (a) 4 (b) 5 (c) 6",
    ],
)
def test_multiple_choice(prompt: str) -> None:
    assert is_multiple_choice(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        "In triangle $ABC$, find $f(A) + f(B)$.",
        "Do (a) add 1, (b) add 2, (c) add 3. What comes out?",
        '[asy]label("(A)", A); label("(B)", B); label("(C)", C);[/asy] How long is $AB$?',
    ],
)
def test_letters_alone_are_no_choice(prompt: str) -> None:
    assert not is_multiple_choice(prompt)


@pytest.mark.parametrize(
    ("prompt", "language"),
    [
        ("Natalia a vendu des pinces à 48 de ses amis en avril, puis la moitié en mai. Combien en tout ?", "fr"),
        ("Bestimme die Ableitung von $f(x) = x^2$ an der Stelle 3.", "de"),
        ("计算3+4的值。", "zh"),
        ("Сколько будет два плюс три?", "ru"),
    ],
)
def test_another_language_is_told(prompt: str, language: str) -> None:
    found = foreign(prompt, ["en"])
    assert found is not None
    assert found.language == language
    assert foreign(prompt, ["en", language]) is None


@pytest.mark.parametrize("prompt", ["2+2=?", r"$\int_0^1 x\,dx$", "Combien ?", "gcd(12, 18)", "", "x" * 500, "Quid?"])
def test_without_clear_evidence_nothing_is_told(prompt: str) -> None:
    assert foreign(prompt, ["en"]) is None


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(UserError, match=r"data\.filters\.language: 'xx'"):
        foreign("What is it?", ["en", "xx"])


@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")
def test_no_english_problem_is_taken_for_another_language() -> None:
    prompts = [json.loads(line)["problem"] for line in (DATA / "math/math500.jsonl").open()]
    prompts += [json.loads(line)["question"] for line in list((DATA / "gsm8k/test.jsonl").open())[:400]]
    prompts += [json.loads(line)["prompt"] for line in (DATA / "code/HumanEval.jsonl").open()]
    prompts += [row["prompt"] for row in json.loads((DATA / "code/sanitized-mbpp.json").read_text())]
    assert [prompt for prompt in prompts if foreign(prompt, ["en"])] == []
