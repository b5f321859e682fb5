"""The code reward: cheats unpaid, right answers paid, and verdicts that are no finding."""

import json
from collections.abc import Mapping, Sequence

import pytest
from code_cases import ADD, BODY, CHEATS, FUNCTIONS, PROGRAMS, PROMPT, RIGHT_ANSWERS, TOTAL
from support import DATA

from grpo_core.rewards import code_check, sandbox
from grpo_core.rewards.code import CodeConfig, code_reward
from grpo_core.rewards.code_check import _Watch, check_function
from grpo_core.rewards.sandbox import Limits, Usage
from grpo_core.rewards.verdict import Sample, Score, Verdict

pytestmark = pytest.mark.skipif(sandbox.why_unusable() is not None, reason=f"the code reward {sandbox.why_unusable()}")
QUICK = CodeConfig(timeout_seconds=1.0, memory_mib=512, workers=4)
PATIENT = CodeConfig(timeout_seconds=120.0, workers=4)  # one of MBPP takes 7 s of a quiet core, over 20 of a loaded one


def score(rows: Mapping[str, tuple[str, Mapping[str, object]]], config: CodeConfig = QUICK) -> dict[str, Score]:
    samples = [Sample(name, response, "", extra=extra) for name, (response, extra) in rows.items()]
    return dict(zip(rows, code_reward(config)(samples), strict=True))


def one(response: str, prompt: str = "", config: CodeConfig = PATIENT, **extra: object) -> Score:
    (found,) = code_reward(config)([Sample("1", response, "", prompt, extra=extra)])
    return found


def test_no_cheat_is_paid_and_each_is_a_finding() -> None:
    found = score(
        {name: (f"```python\n{code}\n```", {"tests": ADD, "entry_point": "add"}) for name, code in CHEATS.items()}
    )
    assert {name: (s.verdict.value, s.detail) for name, s in found.items() if s.reward != 0.0} == {}


def test_right_answers_are_paid_however_they_are_written() -> None:
    texts = {**RIGHT_ANSWERS, "windows lines": f"```python\n{BODY}```".replace("\n", "\r\n")}
    found = score({name: (text, {"tests": ADD, "entry_point": "add"}) for name, text in texts.items()}, PATIENT)
    assert {name: (s.verdict.value, s.detail) for name, s in found.items() if s.reward != 1.0} == {}


def test_right_functions_are_paid_whatever_goes_in_and_out() -> None:
    rows = {name: (f"```python\n{code}\n```", {"tests": tests}) for name, (code, tests) in FUNCTIONS.items()}
    found = score(rows, PATIENT)
    assert {name: (s.verdict.value, s.detail) for name, s in found.items() if s.reward != 1.0} == {}


def test_tests_of_right_functions_can_fail() -> None:
    """The same tests must refuse code that defines the same names and does nothing right."""
    nothing = (
        "```python\ndef f(*a, **k): return 'nothing'\nsum = Stack = Bag = V = C = Node = rev = depth = mark = f\n```"
    )
    found = score({name: (nothing, {"tests": tests}) for name, (_, tests) in FUNCTIONS.items()})
    assert {name: s.detail for name, s in found.items() if s.verdict is not Verdict.WRONG} == {}


def test_programs_are_judged_by_what_they_print() -> None:
    rows = {
        name: (f"```python\n{code}\n```", {"tests": [{"input": given, "output": wanted}], "mode": "stdin"})
        for name, (code, given, wanted, _) in PROGRAMS.items()
    }
    found = score(rows, CodeConfig(timeout_seconds=2.0, memory_mib=512, output_kib=512, workers=4))
    assert {name: s.verdict.value for name, s in found.items()} == {name: case[3] for name, case in PROGRAMS.items()}


def test_a_long_input_and_lines_of_windows() -> None:
    assert one("print(len(input()))", tests=[{"input": "x" * 300_000, "output": "300000\n"}]).verdict is Verdict.OK
    assert one("print('a\\r\\nb\\r')", tests=[{"input": "", "output": "a\r\nb"}]).verdict is Verdict.OK


def test_code_that_lacks_what_the_tests_import_is_wrong() -> None:
    found = one("```python\ndef g(x): return x\n```", tests=["from solution import f\nassert f(1) == 1"])
    assert (found.verdict, found.reward) == (Verdict.WRONG, 0.0)
    assert "name 'f' is not defined" in found.detail


def test_the_first_input_that_fails_decides() -> None:
    tests = [{"input": "1", "output": "1"}, {"input": "2", "output": "3"}, {"input": "3", "output": "4"}]
    found = one("```python\nprint(input())\n```", tests=tests)
    assert (found.verdict, found.detail) == (Verdict.WRONG, "test 2: printed '2\\n'")


def test_answers_that_fooled_other_checkers() -> None:
    path = DATA / "answers/code_attacks.jsonl"
    if not path.exists():
        pytest.skip("needs ../shared/data/answers")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    hasty = CodeConfig(timeout_seconds=0.5, memory_mib=512, workers=4)
    found = score({row["id"]: (row["response"], row) for row in rows}, hasty)
    wrong = {
        row["id"]: found[row["id"]].detail for row in rows if found[row["id"]].reward != float(row["should_be_correct"])
    }
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["body", "whole"])
def test_humaneval_references_pass(form: str) -> None:
    path = DATA / "code/HumanEval.jsonl"
    if not path.exists():
        pytest.skip("needs ../shared/data/code")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    samples = [
        Sample(row["task_id"], row["canonical_solution"], "", row["prompt"], extra={**row, "tests": row["test"]})
        if form == "body"
        else Sample(row["task_id"], f"```python\n{row['prompt']}{row['canonical_solution']}```", "", extra={
            "tests": [row["test"], f"check({row['entry_point']})"], "entry_point": row["entry_point"]})
        for row in (rows if form == "body" else rows[::4])
    ]  # fmt: skip
    assert refused(samples) == {}


@pytest.mark.slow
def test_mbpp_references_pass() -> None:
    path = DATA / "code/sanitized-mbpp.json"
    if not path.exists():
        pytest.skip("needs ../shared/data/code")
    samples = [
        Sample(
            str(row["task_id"]),
            f"```python\n{row['code']}\n```",
            "",
            extra={"tests": row["test_imports"] + row["test_list"]},
        )
        for row in json.loads(path.read_text())
    ]
    assert refused(samples) == {}


def refused(samples: Sequence[Sample]) -> dict[str, str]:
    found = code_reward(PATIENT)(samples)
    return {sample.id: s.detail for sample, s in zip(samples, found, strict=True) if s.verdict is not Verdict.OK}


def test_a_body_goes_on_after_its_prompt() -> None:
    for body in (
        "    return sum(xs)\n",
        "return sum(xs)",
        "```python\nreturn sum(xs)\n```",
        "    return sum(xs)\n\nprint('done\n",
    ):
        assert one(body, PROMPT, tests=TOTAL, entry_point="total").verdict is Verdict.OK
        assert one(body, prompt="Say it in Python.", tests=TOTAL, entry_point="total").verdict is not Verdict.OK
    asked = f"Complete this:\n```python\n{PROMPT}```"
    assert one("    return sum(xs)\n", asked, tests=TOTAL, entry_point="total").verdict is Verdict.OK
    whole = "```python\ndef total(xs: List[int]) -> int:\n    return sum(xs)\n```"  # List comes from the prompt
    assert one(whole, PROMPT, tests=TOTAL, entry_point="total").verdict is Verdict.OK


def test_helpers_of_the_prompt_cannot_be_replaced() -> None:
    prompt = 'def enc(s):\n    return s[::-1]\n\n\ndef dec(s):\n    """ Undo enc. """\n'
    tests = "def check(candidate):\n    assert candidate(enc('abc')) == 'abc'\n"
    assert (
        one("def enc(s): return s\ndef dec(s): return s", prompt, tests=tests, entry_point="dec").verdict
        is Verdict.WRONG
    )
    assert one("    return enc(s)", prompt, tests=tests, entry_point="dec").verdict is Verdict.OK


def test_what_an_object_could_be_asked_does_not_decide() -> None:
    code = """
class Yes:
    def __getattr__(self, name): return lambda *a: True
    __eq__ = __lt__ = __contains__ = __ge__ = lambda s, o: True
    __sub__ = __rsub__ = __abs__ = lambda s, *o: 0.0
    def __float__(self): return 0.0
def f(*a): return Yes()
"""
    for test in (
        "f(1) == 2", "2 == f(1)", "f(1) in [2]", "2 in f(1)", "f(1) < 2", "abs(f(1) - 2) < 1", "f(1).startswith('a')",
        "f(1) >= f(2) == 3", "{3} == {f(1)}", "sorted(f(1)) == [1]", "f(1).issubset({2})", "[f(1)] == [2]",
        "__import__('math').isclose(f(1), 2)",
    ):  # fmt: skip
        assert one(f"```python\n{code}\n```", tests=[f"assert {test}"], entry_point="f").verdict is Verdict.WRONG, test


def test_a_test_framework_cannot_be_told_to_skip() -> None:
    tests = ["import unittest", "class T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 2)"]
    code = "```python\nimport unittest\ndef f(x): raise unittest.SkipTest('later')\n```"
    assert one(code, tests=tests).verdict is Verdict.WRONG


def test_a_broken_channel_is_wrong_even_where_tests_catch_everything() -> None:
    tests = ["try:\n    f(-1)\nexcept:\n    pass"]
    assert one("```python\nimport os\ndef f(x): os._exit(0)\n```", tests=tests).verdict is Verdict.WRONG
    assert one("```python\ndef f(x): raise ValueError\n```", tests=tests).verdict is Verdict.OK


@pytest.mark.parametrize(
    "tests",
    ['["assert add(1, 2) == 3"]', " ['assert add(1, 2) == 3', 'assert add(0, 0) == 0']", "[add(1, 2)].index(3)"],
)
def test_a_list_of_tests_may_be_text_as_json_or_python_writes_it(tests: str) -> None:
    assert one("```python\ndef add(a, b): return a + b\n```", tests=tests).verdict is Verdict.OK
    assert one("```python\ndef add(a, b): return a - b - 9\n```", tests=tests).verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("extra", "verdict", "words"),
    [
        ({}, Verdict.MISSING, "there are no tests"),
        ({"tests": []}, Verdict.MISSING, "there are no tests"),
        ({"tests": ["assert add(1"]}, Verdict.ERROR, "can't be compiled"),
        ({"tests": ["import numpy"]}, Verdict.ERROR, "No module named 'numpy'"),
        ({"tests": ["assert True"]}, Verdict.ERROR, "never call the code"),
        ({"tests": ["def test_it(fixture):\n    assert add(1, 2) == 3"]}, Verdict.WRONG, "test_it"),
        ({"tests": [3]}, Verdict.ERROR, "neither a list of Python source"),
        ({"tests": [{"input": "1"}]}, Verdict.ERROR, "neither a list of Python source"),
        ({"tests": ADD, "mode": "stdin"}, Verdict.ERROR, "neither a list of Python source"),
        ({"tests": ADD, "mode": "call"}, Verdict.ERROR, "mode is 'call'"),
        ({"tests": ADD, "entry_point": 3}, Verdict.ERROR, "entry_point is no text"),
        ({"tests": TOTAL}, Verdict.ERROR, "needs an entry_point"),
    ],
)  # fmt: skip
def test_a_row_at_fault_is_no_finding(extra: dict[str, object], verdict: Verdict, words: str) -> None:
    found = one(BODY, **extra)
    assert found.verdict is verdict
    assert words in found.detail
    assert (found.reward is None) == (verdict is not Verdict.WRONG)


def test_no_code_is_unparsable_and_may_be_masked() -> None:
    extra = {"tests": ADD, "entry_point": "add"}
    for text in ("", "I don't know.", "```python\n\n```", "The sum is 3, as said before."):
        found = one(text, **extra)
        assert (found.verdict, found.reward) == (Verdict.UNPARSABLE, 0.0)
        assert one(text, config=CodeConfig(unparsable="mask"), **extra).reward is None


def test_reward_and_what_was_run_are_told() -> None:
    found = one(f"```python\n{BODY}```", config=CodeConfig(correct=2.5), tests=ADD)
    assert (found.verdict, found.reward, found.components) == (Verdict.OK, 2.5, {"correct": 2.5})
    assert found.extracted == BODY.rstrip("\n")
    assert found.seconds > 0
    failed = one("def add(a, b): return a", tests=ADD)
    assert (failed.reward, failed.detail) == (0.0, "AssertionError at assert add(1, 2) == 3")


def test_tests_may_be_json_text() -> None:
    assert one(BODY, tests=json.dumps(ADD)).verdict is Verdict.OK
    assert one("print(3)", tests='[{"input": "", "output": "3"}]').verdict is Verdict.OK


def test_equal_responses_get_equal_scores() -> None:
    code = "import random\ndef f(): return random.random(), list({'a', 'b', 'c', 'd', 'e'}), str(object()), f\n"
    seen = {one(code, tests=["raise ValueError(f())"]).detail for _ in range(3)}
    assert len(seen) == 1


LIMITS = Limits(0.2, 1 << 29, 32, 1 << 20)


def test_a_sandbox_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_bubblewrap", lambda: ("sh", "-c", "echo no namespaces >&2; exit 1"))
    found = check_function([(BODY,)], ADD, (), "", "add", LIMITS)
    assert found.verdict is Verdict.ERROR
    assert "did not start: " in found.detail
    assert "no namespaces" in found.detail  # of one of both: the other may be ended before it can say so
    monkeypatch.setattr(sandbox, "_bubblewrap", lambda: ("sh", "-c", "exec sleep 60"))
    monkeypatch.setattr(code_check, "_START_SECONDS", 0.3)
    assert check_function([(BODY,)], ADD, (), "", "add", LIMITS).verdict is Verdict.TIMEOUT


def test_time_spent_waiting_for_a_core_does_not_count_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []

    def all_of_it_waiting(self: sandbox.Sandbox) -> Usage:
        looks.append(None)
        return Usage(0.0, 0, 1e6)

    monkeypatch.setattr(sandbox.Sandbox, "usage", all_of_it_waiting)
    found = check_function([(CHEATS["sleeping"],)], ADD, (), "", "add", LIMITS)
    assert found.verdict is Verdict.TIMEOUT
    assert len(looks) > 10  # it went on beyond the limit


def test_a_watch_that_has_just_looked_does_not_look_again() -> None:
    assert _Watch([], LIMITS)._over() is None
