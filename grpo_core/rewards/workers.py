"""Full checks in processes that can be killed, with a wall-clock and a memory limit for every answer.

A pool starts its workers at the first check that needs one, keeps them between calls, and replaces any that hangs,
grows or dies. It works from any thread and after torch was imported: children are fresh interpreters, never forks.
"""

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_core.rewards.verdict import Verdict

_POLL_SECONDS = 0.05  # how often memory is looked at while a check runs
_SPARE = 2  # workers kept after a timeout, so that the next one does not wait for a start
_START_SECONDS = 120.0  # imports on a loaded machine
_START_ATTEMPTS = 2
_KILL_SECONDS = 0.03  # set aside within an answer's limit for noticing and killing
_BUSY_SHARE = 0.1  # of the limit spent computing: the answer was too hard, since an honest one takes a hundredth
_MEMORY_BYTES = 1 << 30  # resident, each worker; its imports take about 100 MB
_CACHE_ENTRIES = 65_536
LAST = 19  # the niceness that gets a hundredth of a core that something else wants
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The verdict of one full check, its reason, the wall-clock seconds it took (0 when it was cached), and its value.

    ``value`` is what a check that marks by degrees found, None for one that does not and where there is no finding.
    """

    verdict: Verdict
    detail: str = ""
    seconds: float = 0.0
    value: float | None = None


@dataclass(slots=True)
class _Job:
    pair: tuple[str, str]
    attempts: int = 0
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Worker:
    """One child. It is starting until ``ready``, busy while it has a job, idle otherwise."""

    process: "subprocess.Popen[bytes]"
    since: float
    ready: bool = False
    job: _Job | None = None
    cpu: float = 0.0  # processor seconds that it had used when the job was sent
    received: bytes = b""
    failure: str = ""


class WorkerPool:
    """Killable workers for one kind of check. Safe to call from several threads: one call runs at a time.

    Args:
        workers: most processes at a time.
        timeout_seconds: wall-clock limit of one attempt at one answer, from the moment it is sent.
        retries: further attempts, each in a fresh worker, after an error, a lost worker, or a timeout during which the
            worker did not get the processor: an answer that computed all the time would only do so again.
        check: which of ``answer_worker.CHECKS`` they run.
    """

    def __init__(self, workers: int, timeout_seconds: float, retries: int, check: str = "math") -> None:
        self._check = check
        self._limit = workers
        self._timeout = timeout_seconds
        self._retries = retries
        self._workers: list[_Worker] = []
        self._owner = os.getpid()
        self._failed_starts = 0
        self._findings: OrderedDict[tuple[str, str], CheckResult] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The ids of the living workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def check(self, pairs: Sequence[tuple[str, str]]) -> list[CheckResult]:
        """Checks ``(answer, gold)`` pairs; one result each, in order. Equal pairs are checked once.

        Findings are cached for later calls; a timeout or an error is tried anew: a loaded machine may be to blame.

        Raises:
            RuntimeError: when no worker can be started at all.
        """
        if os.getpid() != self._owner:  # forked since: these children and this lock are the parent's
            self._workers, self._owner, self._lock = [], os.getpid(), threading.Lock()
        with self._lock:
            results = {pair: self._findings[pair] for pair in pairs if pair in self._findings}
            results.update(self._run([_Job(pair) for pair in dict.fromkeys(pairs) if pair not in results]))
        return [results[pair] for pair in pairs]

    def forget(self) -> None:
        """Empties the cache of findings."""
        with self._lock:
            self._findings.clear()

    def close(self) -> None:
        """Ends the workers. The pool can still be used: the next check that needs one starts it."""
        if os.getpid() == self._owner:
            with self._lock:
                for worker in list(self._workers):
                    self._end(worker)

    def _run(self, jobs: Iterable[_Job]) -> dict[tuple[str, str], CheckResult]:
        waiting = deque(jobs)
        results: dict[tuple[str, str], CheckResult] = {}
        try:
            while waiting or any(worker.job for worker in self._workers):
                self._staff(waiting)
                self._listen(waiting, results)
                self._enforce(waiting, results)
        finally:
            for worker in list(self._workers):
                if worker.job is not None:  # an interrupt came: a late answer must not meet the next question
                    self._end(worker)
        return results

    def _staff(self, waiting: deque[_Job]) -> None:
        """Hands waiting jobs to idle workers, and starts further workers while there are more jobs than hands."""
        for worker in list(self._workers):
            if waiting and worker.ready and worker.job is None:
                job = waiting.popleft()
                job.attempts += 1
                worker.job, worker.since, worker.cpu = job, time.monotonic(), _cpu_seconds(worker.process.pid)
                request = {"answer": job.pair[0], "gold": job.pair[1], "seconds": self._timeout}
                stdin = worker.process.stdin
                assert stdin is not None
                try:
                    stdin.write(json.dumps(request).encode() + b"\n")
                except BrokenPipeError:  # it died idle, so the job never ran: back to the queue without a mark
                    job.attempts -= 1
                    waiting.appendleft(job)
                    worker.job = None
                    self._end(worker)
        hands = sum(worker.job is None for worker in self._workers)
        for _ in range(min(len(waiting) - hands, self._limit - len(self._workers))):
            self._workers.append(_start(self._check))

    def _listen(self, waiting: deque[_Job], results: dict[tuple[str, str], CheckResult]) -> None:
        """Waits for news of any worker, a poll interval at most, and takes it in."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            events = selector.select(self._patience())
        for key, _ in events:
            worker = key.data
            data = os.read(key.fd, 65_536)
            worker.received += data
            if not data:
                self._lost(worker, CheckResult(Verdict.MISSING, "the worker was lost"), waiting, results)
            elif worker.received.endswith(b"\n"):
                message = json.loads(worker.received)
                worker.received = b""
                if worker.job is not None:
                    outcome = CheckResult(Verdict(message["verdict"]), message["detail"], value=message["value"])
                    self._settle(worker, outcome, waiting, results)
                elif "ready" in message:
                    worker.ready, self._failed_starts = True, 0
                else:
                    worker.failure = message["failed"]

    @property
    def _allowed(self) -> float:
        """Seconds after which an answer is stopped, so that it is gone when its limit ends."""
        return self._timeout - min(_KILL_SECONDS, self._timeout / 10)

    def _patience(self) -> float:
        """Seconds to wait for news: a poll interval, or less where the time of an answer is up before."""
        busy = [worker.since for worker in self._workers if worker.job is not None]
        left = min(busy, default=time.monotonic()) + self._allowed - time.monotonic()
        return max(0.0, min(_POLL_SECONDS, left)) if busy else _POLL_SECONDS

    def _enforce(self, waiting: deque[_Job], results: dict[tuple[str, str], CheckResult]) -> None:
        """Kills what is over its limits. Comes after the news, so an answer that has arrived counts."""
        for worker in list(self._workers):
            spent = time.monotonic() - worker.since
            if worker.job is None:
                if not worker.ready and spent > _START_SECONDS:
                    worker.failure = f"not ready after {_START_SECONDS:.0f} s"
                    self._lost(worker, CheckResult(Verdict.MISSING), waiting, results)
            elif spent >= self._allowed:
                if _cpu_seconds(worker.process.pid) - worker.cpu > _BUSY_SHARE * spent:
                    worker.job.attempts = self._retries + 1  # it had the machine to itself: the answer is too hard
                self._lost(worker, CheckResult(Verdict.TIMEOUT, f"over {self._timeout:g} s"), waiting, results)
                while len(self._workers) < min(self._limit, _SPARE):  # hard answers come together: no start between
                    self._workers.append(_start(self._check))
            elif _resident_bytes(worker.process.pid) > _MEMORY_BYTES:
                outcome = CheckResult(Verdict.ERROR, f"over {_MEMORY_BYTES >> 20} MiB of memory")
                self._lost(worker, outcome, waiting, results)

    def _lost(
        self, worker: _Worker, outcome: CheckResult, waiting: deque[_Job], results: dict[tuple[str, str], CheckResult]
    ) -> None:
        if worker.job is not None:
            self._settle(worker, outcome, waiting, results)
        self._end(worker)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _START_ATTEMPTS:
                self._failed_starts = 0
                reason = worker.failure or f"it ended with status {worker.process.returncode}"
                raise RuntimeError(f"the answer checker cannot start: {reason}")

    def _settle(
        self, worker: _Worker, outcome: CheckResult, waiting: deque[_Job], results: dict[tuple[str, str], CheckResult]
    ) -> None:
        """Takes the job off the worker: a finding is kept, anything else is tried again while attempts are left."""
        job = worker.job
        assert job is not None
        worker.job = None
        job.seconds += time.monotonic() - worker.since
        if outcome.verdict.is_finding:
            self._findings[job.pair] = outcome
            if len(self._findings) > _CACHE_ENTRIES:
                self._findings.popitem(last=False)
        elif job.attempts <= self._retries:
            waiting.append(job)
            return
        results[job.pair] = replace(outcome, seconds=job.seconds)

    def _end(self, worker: _Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
        worker.process.kill()
        worker.process.wait()
        for pipe in (worker.process.stdin, worker.process.stdout):
            if pipe is not None:
                pipe.close()


_pools: dict[tuple[int, float, int, str, int], WorkerPool] = {}
_pools_lock = threading.Lock()


def shared_pool(workers: int | None, timeout_seconds: float, retries: int, check: str = "math") -> WorkerPool:
    """The pool of this process for these settings, so that every round and thread meets workers already warm.

    A thread that has stepped back (``niceness``) gets a pool of its own, whose workers have done so, too.

    Args:
        workers: None: one for each core, four at most.
    """
    count = workers or min(4, os.cpu_count() or 1)
    with _pools_lock:
        settings = (count, timeout_seconds, retries, check)
        return _pools.setdefault((*settings, niceness()), WorkerPool(*settings))


@atexit.register
def close_pools(of: int | None = None) -> None:
    """Ends the workers of shared pools, those of one niceness or all; runs by itself when the interpreter ends."""
    for (*_, nice), pool in list(_pools.items()):
        if of in (None, nice):
            pool.close()


def step_back() -> None:
    """Let everything else on the machine go before this thread, and before what it starts from now on (Linux).

    Two threads of a model wait for each other at every operation, so that a neighbour on one core stops both.
    """
    if sys.platform == "linux":  # elsewhere priorities belong to whole processes
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LAST)


def niceness() -> int:
    """Of this thread: 0 unless it, or whoever started it, has stepped back."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) if sys.platform == "linux" else 0


def _start(check: str) -> _Worker:
    """A fresh interpreter, in a session of its own so that Ctrl-C in a terminal reaches the parent alone."""
    paths = [str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "grpo_core.rewards.answer_worker", str(os.getpid()), check],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
    )
    return _Worker(process, time.monotonic())


def _cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    """Memory in use by a process, 0 where the system does not say (no /proc, or the process is gone)."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
