"""The code reward: the tests of a row, run against the code of a response, in sandboxes.

Why no response can forge its verdict: its code runs in one sandboxed process, the tests in another, and only plain data
goes between them. The code's process holds neither tests nor expected values, and no object of the code is ever
compared with one; see ``inside`` and docs/code-reward.md. Programs that print are compared outside of any sandbox.
"""

import ast
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.rewards.code_check import Finding, StdinTest, check_function, check_program
from grpo_core.rewards.code_extract import Sources, alternatives, defines
from grpo_core.rewards.code_prompt import PromptCode, called_names, code_of_prompt, not_run, parsed
from grpo_core.rewards.sandbox import Limits, require
from grpo_core.rewards.verdict import Sample, Score, Verdict

CODE_VERSION = 2
"""Raised when equal responses and tests would be scored differently than before."""

_EXTRACTED_CHARS = 20_000


class CodeConfig(BaseModel):
    """How code is checked and paid."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    correct: float = Field(1.0, allow_inf_nan=False, description="Paid for code that passes all tests of its row.")
    timeout_seconds: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Limit of one run, without waiting for a free core: all of a function's tests, or one test of a "
        "program. Code over it is wrong.",
    )
    memory_mib: int = Field(1024, ge=64, le=1 << 20, description="Limit of memory, in MiB; code over it is wrong.")
    processes: int = Field(32, ge=4, le=4096, description="Most processes and threads that code may have at a time.")
    output_kib: int = Field(8192, ge=1, le=1 << 20, description="Longest output or returned value, in KiB.")
    workers: int | None = Field(None, ge=1, le=256, description="Checks at a time; null: one a core, 4 at most.")
    retries: int = Field(1, ge=0, le=10, description="Further tries of a check that could not be done.")
    unparsable: Literal["zero", "mask"] = Field(
        "zero", description="A response without code: reward 0, or masked out of its group."
    )


def code_reward(config: CodeConfig) -> Callable[[Sequence[Sample]], list[Score]]:
    """``correct`` for code that passes the tests of its row, else 0.

    A row's ``extra`` holds ``tests``: Python source or a list of it that calls the code, or a list of
    ``{"input", "output"}`` for a program that reads and prints (a row without them has its tests in the gold: that is
    how a run's data brings them, by ``data.gold_column``); ``mode`` (``function`` or ``stdin``) where it is to be
    said; ``entry_point``, the function's name; and ``prompt``, if the code to be completed is not in ``Sample.prompt``.

    Code over its time, memory or output limit is ``wrong``, since that is a fact about the response; ``timeout`` is a
    machine too busy to check, ``error`` a sandbox that failed or tests that can't run, and neither is paid or zero.

    Raises:
        NotHere: where no sandbox can run; it names the mend.
    """
    require()
    limits = Limits(config.timeout_seconds, config.memory_mib << 20, config.processes, config.output_kib << 10)
    workers = config.workers or min(4, os.cpu_count() or 1)

    def check(sample: Sample) -> Score:
        started = time.perf_counter()
        extracted, finding = _check(sample, limits, config.retries)
        return _score(config, finding, extracted, time.perf_counter() - started)

    def score(samples: Sequence[Sample]) -> list[Score]:
        pool = ThreadPoolExecutor(workers, "code-check")
        try:
            return list(pool.map(check, samples))
        finally:
            pool.shutdown(cancel_futures=True)

    return score


def _check(sample: Sample, limits: Limits, retries: int) -> tuple[str | None, Finding]:
    tests = _tests(sample.extra.get("tests", sample.gold), sample.extra.get("mode"))
    if isinstance(tests, Finding):
        return None, tests
    entry_point = sample.extra.get("entry_point") or ""
    if not isinstance(entry_point, str):
        return None, Finding(Verdict.ERROR, "entry_point is no text")
    functions = tuple(test for test in tests if isinstance(test, str))
    if functions and not entry_point:
        entry_point = next((name for name in called_names(functions) if defines(sample.response, name)), "")
    shown = sample.extra.get("prompt")
    prompt = (
        code_of_prompt(shown if isinstance(shown, str) else sample.prompt, entry_point) if functions else PromptCode()
    )
    code = alternatives(sample.response, entry_point if functions else "", prompt.code, prompt.preamble)
    if not code:
        return None, Finding(Verdict.UNPARSABLE, "no code found")
    for _ in range(retries + 1):
        try:
            if functions:
                finding = check_function(code, functions, not_run(functions), prompt.helpers, entry_point, limits)
            else:
                finding = _check_programs(code, [test for test in tests if isinstance(test, StdinTest)], limits)
        except OSError as error:  # no process or descriptor is left to start one more
            finding = Finding(Verdict.ERROR, f"the sandbox did not start: {error.strerror}")
        if finding.verdict.is_finding:
            break
    return code[0][-1], finding


def _check_programs(code: Sequence[Sources], tests: Sequence[StdinTest], limits: Limits) -> Finding:
    """The first test that is not passed decides."""
    for number, test in enumerate(tests, start=1):
        finding = check_program(code, test, limits)
        if finding.verdict is not Verdict.OK:
            return Finding(finding.verdict, f"test {number}: {finding.detail}")
    return Finding(Verdict.OK)


def _tests(tests: object, mode: object) -> list[str] | list[StdinTest] | Finding:
    if isinstance(tests, str) and tests.lstrip()[:1] == "[":
        tests = _listed(tests)
    if isinstance(tests, str):
        tests = [tests] if tests.strip() else []
    if not tests:
        return Finding(Verdict.MISSING, "there are no tests")
    if mode not in (None, "", "function", "stdin"):
        return Finding(Verdict.ERROR, f"mode is {mode!r}; it can be 'function' or 'stdin'")
    if isinstance(tests, Sequence):
        if mode != "stdin" and all(isinstance(test, str) for test in tests):
            return [str(test) for test in tests]
        if mode != "function" and all(isinstance(test, Mapping) for test in tests):
            pairs = [(test.get("input", ""), test.get("output")) for test in tests]
            if all(isinstance(given, str) and isinstance(expected, str) for given, expected in pairs):
                return [StdinTest(given, expected) for given, expected in pairs]
    return Finding(Verdict.ERROR, "tests are neither a list of Python source nor one of objects with input and output")


def _listed(tests: str) -> object:
    """A list that a table held as text, as JSON or as Python wrote it; anything else is source and stays as it is."""
    try:
        return json.loads(tests.strip())
    except (ValueError, RecursionError):
        tree = parsed(tests.strip())
    match tree:
        case ast.Module(body=[ast.Expr(value=literal)]):
            try:
                return ast.literal_eval(literal)
            except (ValueError, TypeError, RecursionError, MemoryError):
                return tests
    return tests


def fault_of_tests(sample: Sample) -> str:
    """Why no code can be checked by the tests of a row; blank where it can. Nothing is run."""
    found = _tests(sample.extra.get("tests", sample.gold), sample.extra.get("mode"))
    return found.detail if isinstance(found, Finding) else ""


def _score(config: CodeConfig, finding: Finding, extracted: str | None, seconds: float) -> Score:
    shown = None if extracted is None else extracted[:_EXTRACTED_CHARS]
    verdict = finding.verdict
    if not verdict.is_finding or (verdict is Verdict.UNPARSABLE and config.unparsable == "mask"):
        return Score(verdict, None, extracted=shown, detail=finding.detail, seconds=seconds)
    reward = config.correct if verdict is Verdict.OK else 0.0
    return Score(verdict, reward, {"correct": reward}, shown, finding.detail, seconds)
