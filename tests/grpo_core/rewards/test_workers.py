"""Worker processes: limits, losses, and what is left when the parent dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from grpo_core.rewards import workers
from grpo_core.rewards.verdict import Verdict
from grpo_core.rewards.workers import CheckResult, WorkerPool

ROOT = Path(__file__).resolve().parents[3]
HARD = (r"\int_0^1 e^{-x^2} \sin(x^3) \ln(1+x^5) dx", "7")  # computer algebra looks for its closed form, in vain
EQUAL = (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}")
UNEQUAL = (r"\sqrt{3}", r"\sqrt{2}")


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(workers=1, timeout_seconds=60.0, retries=0)  # a busy machine takes seconds for the first answer
    yield pool
    pool.close()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: object, seconds: float = 120.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def test_nothing_runs_before_it_is_needed_or_after_close(pool: WorkerPool) -> None:
    assert pool.check([]) == []
    assert pool.process_ids == ()
    assert pool.check([EQUAL])[0].verdict is Verdict.OK
    (pid,) = pool.process_ids
    pool.close()
    assert pool.process_ids == ()
    assert gone(pid)
    assert pool.check([UNEQUAL])[0].verdict is Verdict.WRONG  # opens again


def test_results_come_in_order_and_findings_are_cached(pool: WorkerPool) -> None:
    results = pool.check([EQUAL, UNEQUAL, EQUAL])
    assert [result.verdict for result in results] == [Verdict.OK, Verdict.WRONG, Verdict.OK]
    pool.close()
    assert pool.check([UNEQUAL, EQUAL]) == [CheckResult(Verdict.WRONG), CheckResult(Verdict.OK)]
    assert pool.process_ids == ()  # no worker was needed


def test_a_hanging_answer_times_out_and_the_pool_goes_on(pool: WorkerPool) -> None:
    pool._timeout = 1.0
    (late,) = pool.check([HARD])
    assert (late.verdict, late.detail) == (Verdict.TIMEOUT, "over 1 s")
    pool._timeout = 60.0
    assert [result.verdict for result in pool.check([EQUAL, UNEQUAL])] == [Verdict.OK, Verdict.WRONG]


def test_a_worker_killed_in_the_middle_is_missing_and_replaced(pool: WorkerPool) -> None:
    pool.check([EQUAL])
    (pid,) = pool.process_ids
    worker = psutil.Process(pid)
    before = worker.cpu_times().user
    results: list[CheckResult] = []
    thread = threading.Thread(target=lambda: results.extend(pool.check([HARD])))
    thread.start()
    wait_until(lambda: worker.cpu_times().user > before + 0.2)
    os.kill(pid, signal.SIGKILL)
    thread.join(120)
    assert [result.verdict for result in results] == [Verdict.MISSING]
    assert pool.check([UNEQUAL])[0].verdict is Verdict.WRONG
    assert pool.process_ids != (pid,)


def test_a_worker_killed_while_idle_costs_nothing(pool: WorkerPool) -> None:
    pool.check([EQUAL])
    (pid,) = pool.process_ids
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))
    assert pool.check([UNEQUAL])[0].verdict is Verdict.WRONG


def test_a_second_try_meets_a_fresh_worker() -> None:
    pool = WorkerPool(workers=1, timeout_seconds=5.0, retries=1)
    try:
        pool.check([EQUAL])
        (pid,) = pool.process_ids
        os.kill(pid, signal.SIGSTOP)  # hangs whatever it is given
        assert pool.check([UNEQUAL])[0].verdict is Verdict.WRONG
        assert pool.process_ids != (pid,)
        assert gone(pid)
    finally:
        pool.close()


def test_memory_over_the_limit_is_an_error(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_core.rewards.workers._MEMORY_BYTES", 1 << 20)  # less than an idle interpreter
    result = pool.check([HARD])[0]
    assert result.verdict is Verdict.ERROR
    assert result.detail == "over 1 MiB of memory"


def test_it_works_from_a_thread_that_ends_and_goes_on_in_another(pool: WorkerPool) -> None:
    verdicts: list[Verdict] = []
    pids: list[tuple[int, ...]] = []

    def work(pair: tuple[str, str]) -> None:
        verdicts.append(pool.check([pair])[0].verdict)
        pids.append(pool.process_ids)

    for pair in (EQUAL, UNEQUAL):
        thread = threading.Thread(target=work, args=(pair,))
        thread.start()
        thread.join(60)
    assert verdicts == [Verdict.OK, Verdict.WRONG]
    assert pids[0] == pids[1]  # the worker outlived the thread that started it


def test_text_of_a_model_is_never_run(pool: WorkerPool, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f'__import__("os").system("touch {mark}")'
    answers = [code, f"f({code})", rf"\pi + {code}", rf"\begin{{pmatrix}} {code} \\ 1 \end{{pmatrix}}"]
    results = pool.check([(answer, "42") for answer in answers])
    assert all(result.verdict in (Verdict.WRONG, Verdict.UNPARSABLE) for result in results)
    assert not mark.exists()
    assert pool.check([(r"2.5\pi", r"\frac{5\pi}{2}")])[0].verdict is Verdict.OK  # literals still pass


def test_what_sympy_loads_late_works_in_a_fresh_worker(pool: WorkerPool) -> None:
    assert pool.check([("(1+x)^2", "x^2+2x+1")])[0].verdict is Verdict.OK  # simplify reads texts of sympy's own


def test_a_worker_that_cannot_start_says_why(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"the answer checker cannot start: ImportError: broken on purpose"):
        pool.check([EQUAL])


CHILD = """
import os, sys, threading
from grpo_core.rewards.workers import WorkerPool
pool = WorkerPool(workers=2, timeout_seconds=15.0, retries=0)  # a busy one ends by an alarm, a second after that
pool.check([("x+1", "1+x"), ("x+2", "2+x"), ("x+3", "3+x")])
print(*pool.process_ids, flush=True)
{then}
"""


@pytest.mark.parametrize(
    "then",
    ["sys.stdin.read()", r"pool.check([(r'\int_0^1 e^{-x^2} \sin(x^3) \ln(1+x^5) dx', '7')] ); sys.stdin.read()"],
    ids=["idle", "busy"],
)
def test_no_worker_outlives_a_killed_parent(then: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(then=then)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    try:
        assert pids
        assert not any(gone(pid) for pid in pids)
        time.sleep(0.3)  # into the check
        parent.kill()
        parent.wait()
        wait_until(lambda: all(gone(pid) for pid in pids))
    finally:
        parent.kill()
        parent.communicate()


def test_no_worker_outlives_a_parent_that_ends_well() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD.format(then="")], cwd=ROOT, capture_output=True, timeout=300)
    assert done.returncode == 0
    assert done.stderr == b""
    wait_until(lambda: all(gone(int(pid)) for pid in done.stdout.split()))


def test_a_fork_starts_workers_of_its_own() -> None:
    then = """
if os.fork() == 0:
    own = pool.check([("x+4", "4+x")])[0].verdict.value, bool(pool.process_ids)
    pool.close()
    print(*own, flush=True)
    os._exit(0)
os.wait()
print(pool.check([("x+5", "5+x")])[0].verdict.value, *pool.process_ids)
"""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(then=then)], cwd=ROOT, capture_output=True, timeout=300, text=True
    )
    before, child, after = done.stdout.splitlines()
    assert child == "ok True"
    assert after == f"ok {before}"


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own here")
def test_a_thread_that_steps_back_has_workers_that_do_so() -> None:
    def behind() -> tuple[WorkerPool, list[int]]:
        workers.step_back()
        pool = workers.shared_pool(1, 61.0, 0)
        assert pool.check([EQUAL])[0].verdict is Verdict.OK
        return pool, [psutil.Process(pid).nice() for pid in pool.process_ids]

    ours = workers.shared_pool(1, 61.0, 0)
    ours.check([EQUAL])
    with ThreadPoolExecutor(1) as threads:
        theirs, nice = threads.submit(behind).result()
    assert nice == [workers.LAST]
    assert [psutil.Process(pid).nice() for pid in ours.process_ids] == [workers.niceness()]
    workers.close_pools(of=workers.LAST)
    assert theirs.process_ids == ()
    assert len(ours.process_ids) == 1
    ours.close()
