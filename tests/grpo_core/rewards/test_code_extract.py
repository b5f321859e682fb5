"""Finding the code in a response."""

import pytest
from code_cases import BODY, PROMPT
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.rewards.code_extract import alternatives, defines
from grpo_core.rewards.code_prompt import called_names, code_of_prompt, not_run


def first(response: str, entry_point: str = "add") -> str | None:
    found = alternatives(response, entry_point)
    return found[0][-1] if found else None


def test_the_last_block_with_the_entry_point_counts() -> None:
    draft = "```python\ndef add(a, b):\n    return a - b\n```\n"
    usage = "```python\nprint(add(1, 2))\n```\n"
    assert first(f"{draft}No:\n```python\n{BODY}```\n{usage}") == BODY.rstrip("\n")
    assert first(f"{draft}{usage}", "") == "print(add(1, 2))"
    assert first("```python\nx = 1\n```\n```\n3\n```", "") == "x = 1"  # output without a language
    assert first("```cpp\nint add;\n```") == "int add;"


def test_a_fence_closes_with_its_own_kind() -> None:
    assert first("````python\nadd = 1\n```\n````") == "add = 1\n```"
    assert first("~~~\nadd = 1\n```\n~~~") == "add = 1\n```"
    assert first("```python\nadd = 1") == "add = 1"


def test_a_fence_inside_the_code_leaves_longer_readings() -> None:
    text = "```python\ndef add(a, b):\n  '''\n  ```\n  '''\n  return a\n```\n"
    shortest, longer = [sources[0] for sources in alternatives(text, "add")][:2]
    assert shortest.endswith("'''")
    assert longer.endswith("return a")


def test_thinking_is_left_aside_where_code_follows() -> None:
    thought = "<think>\n```python\nadd = 1\n```\n</think>\n"
    assert first(f"{thought}```python\nadd = 2\n```") == "add = 2"
    assert first(f"{thought}That is it.") == "add = 1"


def test_text_without_a_fence_is_read_as_code_where_it_is_some() -> None:
    found = [sources[0] for sources in alternatives(f"Sure:\n\n{BODY}\nThat adds.", "add")]
    assert found[0].startswith("def add")
    assert BODY + "" in [text.rstrip("\n") + "\n" for text in found]
    assert alternatives("print(1)\n") == [("print(1)\n",)]
    assert alternatives("The answer is 3.") == []


@pytest.mark.parametrize(
    ("code", "does"),
    [
        ("def add(a): pass", True), ("    async def add(self): pass", True), ("class add: pass", True),
        ("add = 1", True), ("add: int = 1", True), ("from x import add", True), ("add == 1", False),
        ("print(add)", False), ("def added(): pass", False),
    ],
)  # fmt: skip
def test_defining_a_name(code: str, does: bool) -> None:
    assert defines(code, "add") is does


@given(st.text(alphabet="`~\n\r \tpython def add():=<think/>", max_size=200))
def test_any_text_is_read(text: str) -> None:
    for sources in alternatives(text, "add", PROMPT, PROMPT):
        assert sources[-1].strip()


def test_code_of_a_prompt_and_its_helpers() -> None:
    prompt = f"import math\nLIMIT = 3\ndef half(x):\n    return x / 2\n{PROMPT}"
    found = code_of_prompt(prompt, "total")
    assert (found.code, found.preamble) == (prompt, prompt)
    assert found.helpers.split("\n")[0] == "import math"
    assert "def half" in found.helpers
    assert "def total" not in found.helpers
    assert code_of_prompt("def total(xs):\n", "total").preamble == "def total(xs):\n    pass\n"
    assert code_of_prompt(f"Complete:\n```python\n{PROMPT}```", "total").code == PROMPT.rstrip("\n")
    assert code_of_prompt("Write a function total that sums.", "total").code == ""
    stub = code_of_prompt("class Solution:\n    def total(self, xs):\n", "total")
    assert (stub.helpers, stub.preamble.rstrip().endswith("pass")) == ("", True)


def test_what_tests_call_and_what_they_leave_to_be_run() -> None:
    tests = ("from math import isclose", "assert isclose(f(1), g(set(x for x in h)))")
    assert called_names(tests) == ("f", "g", "set")
    tests = (
        "def check(candidate):\n    helper()",
        "def helper(): pass",
        "def test_a(): pass\ntest_a()",
        "class T: pass",
    )
    assert not_run(tests) == ("check", "T")


@pytest.mark.parametrize("text", [" " * 200_000, "```\nimport a\n```\n" * 12_000, "<answer>" * 25_000])
def test_text_made_to_be_slow_is_read_in_one_pass(text: str) -> None:
    """Each takes minutes where a pattern starts again from every place."""
    assert first(text) in (None, "import a")
