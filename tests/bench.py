"""A real Prefect server with the settings that docs/schedule.md names, a real worker, and runs as small as can be."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import patient
import warm
from support import ROOT, TINY, free_port, prefect_server

Server = Callable[[], AbstractContextManager[dict[str, str]]]  # starts one, and tells the environment to use it
POOL = "tests"
SMALL = {
    "data.prompts_per_round": "4", "data.eval_size": "2", "generation.group_size": "4",
    "generation.max_new_tokens": "4", "evaluation.samples": "1", "update.epochs": "1",
    "reward.name": "support:odd_bytes",
}  # fmt: skip

# Loops that take 5 to 10 seconds by default. What is tested stands in deployments/, not here.
QUICK = {
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_SCHEDULER_MAX_RUNS": "30",  # not a hundred, to be made and taken away for each schedule
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "1",
    "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT1S",
}


class Bench:
    """The server, its worker, and what a user does with them."""

    worker_command: tuple[str, ...] = ("prefect", "worker", "start", "--pool", POOL, "--limit", "2")

    def __init__(self, home: Path, server: Server | None = None) -> None:
        port = free_port()
        self.home = home
        self.warm = warm.program()
        self._open: Server = server or (lambda: prefect_server(home / "prefect", port, **QUICK))
        self._server = ExitStack()
        self.environment = self._server.enter_context(self._open())
        user, _, password = self.environment.get("PREFECT_API_AUTH_STRING", "").partition(":")
        self.api = patient.client(self.environment["PREFECT_API_URL"], (user, password) if user else None)
        self.everything = os.environ | self.environment | {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_WORKER_PREFETCH_SECONDS": "1",
        }  # fmt: skip
        self._worker: subprocess.Popen[bytes] | None = None

    def _start(self, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{log}.log").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, *arguments], env=self.everything, stdout=out, stderr=out, start_new_session=True
            )

    def grpo_rounds(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """The command line, against this server."""
        return subprocess.run(
            [*self.warm, *map(str, arguments)],
            env=self.everything, cwd=self.home, capture_output=True, text=True,
        )  # fmt: skip

    def worker(self) -> int:
        """Start the worker where none runs; its process id."""
        if self._worker is None or self._worker.poll() is not None:
            self._worker = self._start("worker", "-m", *self.worker_command)
        return self._worker.pid

    def tell_worker(self, number: int) -> None:
        """Send the worker a signal, and SIGKILL to all that it has started, too."""
        if number == signal.SIGKILL:
            os.killpg(self.worker(), number)
        else:
            os.kill(self.worker(), number)

    def await_worker(self) -> None:
        """Wait until the worker is gone; as a service manager would, kill it where it takes more than a minute."""
        assert self._worker is not None
        try:
            self._worker.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(self._worker.pid, signal.SIGKILL)
            self._worker.wait(timeout=30)

    def restart_server(self) -> None:
        """Down, and up again at the same address with the same database."""
        self._server.close()
        self._server.enter_context(self._open())

    def register(
        self, run: Path, flows: tuple[str, ...] = ("next-round",), interval: float | None = None,
        env: dict[str, str] | None = None, tags: tuple[str, ...] = (), rounds: int = 2,
    ) -> dict[str, str]:  # fmt: skip
        """Register deployments of a run, named after its folder; their ids by flow."""
        from deployments.registry import Slots, build
        from grpo_core.config import load_config

        config = load_config(TINY, [f"name={run.name}", *(f"{key}={value}" for key, value in SMALL.items())], rounds)
        found = {}
        for made in build(config, str(run), run.name, Slots(interval=interval), {"name": POOL, "type": "process"}):
            if made.flow_name in flows:
                made.job_variables["command"] = " ".join(self.warm)
                made.job_variables["env"] |= {"PYTHONPATH": self.everything["PYTHONPATH"]} | (env or {})
                made.tags.extend(tags)
                found[str(made.flow_name)] = str(made.apply(work_pool_name=POOL))
        return found

    def post(self, path: str, value: Any) -> Any:
        return self.api.post(path, json=value).raise_for_status().json()

    def get(self, path: str) -> Any:
        return self.api.get(path).raise_for_status().json()

    def start(self, deployment: str, **parameters: Any) -> str:
        """Start a flow run as the UI does; its id."""
        wanted = {"parameters": parameters, "idempotency_key": str(uuid4())}
        return str(self.post(f"/deployments/{deployment}/create_flow_run", wanted)["id"])

    def set_state(self, flow_run: str, kind: str, name: str | None = None) -> None:
        """Set a state as the UI does."""
        self.post(f"/flow_runs/{flow_run}/set_state", {"state": {"type": kind, "name": name}})

    def retry(self, flow_run: str) -> None:
        self.set_state(flow_run, "SCHEDULED", "AwaitingRetry")

    def state(self, flow_run: str) -> tuple[str, str]:
        """A flow run's state and its message."""
        state = self.get(f"/flow_runs/{flow_run}")["state"]
        return state["name"], state["message"] or ""

    def end_of(self, flow_run: str) -> tuple[str, str]:
        """The final state of a flow run and its message, waiting for it."""
        ends = ("Completed", "Failed", "Crashed", "Cancelled")
        found = self.state(flow_run)

        def ended() -> bool:
            nonlocal found
            found = self.state(flow_run)
            return found[0] in ends

        until(ended, lambda: f"{found}\n{self.worker_log()[-3000:]}")
        return found

    def flow_runs(self, deployment: str) -> list[dict[str, Any]]:
        """Flow runs of a deployment whose time has come, the first first."""
        of = {"deployments": {"id": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_ASC"}
        due = {"flow_runs": {"expected_start_time": {"before_": datetime.now(UTC).isoformat()}}}
        return list(self.post("/flow_runs/filter", of | due))

    def end_schedule(self, deployment: str) -> None:
        """Take a deployment's schedule away, and with it the slots to come."""
        for schedule in self.get(f"/deployments/{deployment}")["schedules"]:
            gone = self.api.delete(f"/deployments/{deployment}/schedules/{schedule['id']}")
            if gone.status_code != httpx.codes.NOT_FOUND:  # a first try, the answer to which was lost
                gone.raise_for_status()

    def inner(self, run: Path) -> dict[str, str]:
        """The latest state of each flow run of a training run, by name."""
        tagged = {"flow_runs": {"tags": {"all_": [tag_of(run)]}}, "sort": "EXPECTED_START_TIME_ASC"}
        return {found["name"]: found["state_name"] for found in self.post("/flow_runs/filter", tagged)}

    def stages(self, run: Path, round_number: int) -> dict[str, list[str]]:
        """The states in which each stage of a round ended, one for each time that it was called, in order."""
        wanted = {"flow_runs": {"tags": {"all_": [tag_of(run)]}}, "sort": "EXPECTED_START_TIME_ASC", "limit": 200}
        found: dict[str, list[str]] = {}
        for task in self.post("/task_runs/filter", wanted):
            stage, _, number = task["name"].rpartition("-")
            if number == f"{round_number:04d}":
                found.setdefault(stage, []).append(task["state_name"])
        return found

    def worker_log(self) -> str:
        return (self.home / "worker.log").read_text()

    def close(self) -> None:
        if self._worker is not None and self._worker.poll() is None:
            os.killpg(self._worker.pid, signal.SIGKILL)
            self._worker.wait()
        self.api.close()
        self._server.close()


def tag_of(run: Path) -> str:
    return f"grpo-run-{json.loads((run / 'run.json').read_text())['run_id']}"


def until(holds: Callable[[], object], told: Callable[[], str] = lambda: "it never came", seconds: float = 300) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)
