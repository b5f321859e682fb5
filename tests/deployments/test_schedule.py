"""Rounds on a schedule, on a real Prefect server by a real worker: slots, overlaps, kills, restarts, retries."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import Bench, until
from prefect.client.orchestration import get_client
from support import digests
from warm import FREEZE

from deployments.automations import ensure_automation, zombies
from tasks.run import single_writer

pytestmark = pytest.mark.slow

FULL = "Deployment concurrency limit reached."


def same_bytes(run: Path, alone: Path, rounds: int) -> None:
    """All that a run has is what the one left alone has, and it has so many rounds."""
    mine, others = digests(run), digests(alone)
    assert f"rounds/{rounds:04d}/evaluation/manifest.json" in mine
    assert {name: others.get(name) for name in mine} == mine


ROLLOUTS, REWARDS = (
    f"after-rename:rounds/0001/{kind}/.done-shard-00000.parquet.json" for kind in ("rollouts", "rewards")
)  # what comes after them passes them no more


def frozen(run: Path, but: int = 0) -> int:
    """Wait until the process that writes a run has stopped itself (see FREEZE), and is not that one; its id."""
    found = 0

    def is_frozen() -> bool:
        nonlocal found
        with contextlib.suppress(FileNotFoundError):
            found = int(json.loads((run / ".lock-holder.json").read_text())["pid"])
            state = Path(f"/proc/{found}/stat").read_text().rpartition(")")[2].split()[0]
            return state == "T" and found != but
        return False

    until(is_frozen)
    return found


@contextlib.contextmanager
def taken_for_dead(tag: str) -> Iterator[None]:
    """Inside, flow runs of this tag that fall silent are crashed; not after, when a busy machine may silence them."""
    wanted = zombies(silence_seconds=12, tag=tag)
    ensure_automation(wanted)
    yield
    with get_client(sync_client=True) as client:
        for found in client.read_automations_by_name(wanted.name):
            client.delete_automation(found.id)


def let_go_when_told_to_stop(process: int) -> None:
    def told() -> bool:
        pending = next(x for x in Path(f"/proc/{process}/status").read_text().splitlines() if x.startswith("ShdPnd"))
        return bool(int(pending.split()[1], 16) & 1 << signal.SIGTERM - 1)

    until(told)
    os.kill(process, signal.SIGCONT)


@pytest.mark.long
def test_a_schedule_does_a_round_a_slot_and_catches_missed_slots_up_once(bench: Bench, alone: Path) -> None:
    run = bench.home / "slots"
    deployment = bench.register(run, interval=3)["next-round"]

    def ends() -> dict[str, tuple[str, str]]:
        return {r["id"]: bench.state(r["id"]) for r in bench.flow_runs(deployment)}

    until(lambda: [state for state, _ in ends().values()].count("Late") >= 2)
    missed = list(ends())
    bench.worker()
    until(lambda: [state for state, _ in ends().values()].count("Completed") >= 3)
    bench.end_schedule(deployment)
    until(lambda: {state for state, _ in ends().values()} == {"Completed", "Cancelled"}, lambda: str(ends()))
    told = [message for state, message in ends().values() if state == "Completed"]
    assert told[:2] == ["1 of 2 rounds are done.", "2 of 2 rounds are done."]
    assert set(told[2:]) == {"2 of 2 rounds are done."}
    refused = {message for state, message in ends().values() if state == "Cancelled"}
    assert FULL in refused
    assert all(message == FULL or message.startswith("Missed; ") for message in refused)
    assert [ends()[found][0] for found in missed].count("Completed") == 1
    same_bytes(run, alone, 2)
    artifacts = {found["key"]: found for found in bench.post("/artifacts/latest/filter", {})}
    identity = json.loads((run / "run.json").read_text())["run_id"][:8]
    assert artifacts[f"slots-{identity}-progress"]["data"] == 100
    summary = artifacts[f"slots-{identity}-round-0002"]["data"]
    assert summary.startswith("# slots: round 2 of 2")
    assert "mlflow ui --backend-store-uri" in summary
    assert "| policy |" in summary


def test_rounds_of_one_run_never_overlap(bench: Bench, alone: Path) -> None:
    run = bench.home / "overlap"
    made = bench.register(run, ("next-round", "campaign"))
    bench.worker()
    with single_writer(str(run)):
        before = sorted(run.iterdir())
        refused = bench.start(made["next-round"])
        campaign = bench.start(made["campaign"], rounds=2, wait_minutes=5)
        state, message = bench.end_of(refused)
        assert state == "Cancelled"
        assert f"'{run}' is being written by process {os.getpid()} on " in message
        until(lambda: bench.state(campaign)[0] == "Running")
        second = bench.start(made["campaign"], rounds=1)
        until(lambda: bench.state(second)[0] == "AwaitingConcurrencySlot")
        bench.set_state(second, "CANCELLED")
        assert sorted(run.iterdir()) == before
    assert bench.end_of(campaign)[0] == "Completed"
    same_bytes(run, alone, 2)
    assert "grpo-until-2" in bench.get(f"/flow_runs/{campaign}")["tags"]


@pytest.mark.long
def test_a_worker_killed_with_its_process_is_found_and_the_next_slot_goes_on(bench: Bench, alone: Path) -> None:
    run = bench.home / "killed"
    deployment = bench.register(run, tags=("killed",), env={FREEZE: ROLLOUTS})["next-round"]
    bench.worker()
    with taken_for_dead("killed"):
        killed = bench.start(deployment)
        frozen(run)
        bench.tell_worker(signal.SIGKILL)
        bench.await_worker()
        assert bench.state(killed)[0] == "Running"
        assert bench.end_of(killed) == ("Crashed", "Its process fell silent; it is taken for dead.")
    bench.worker()
    assert bench.end_of(bench.start(deployment)) == ("Completed", "1 of 2 rounds are done.")
    same_bytes(run, alone, 1)


@pytest.mark.long
def test_a_round_survives_a_restart_of_the_server(bench: Bench, alone: Path) -> None:
    run = bench.home / "restarted"
    deployment = bench.register(run, env={FREEZE: ROLLOUTS})["next-round"]
    bench.worker()
    going_on = bench.start(deployment)
    writer = frozen(run)
    bench.restart_server()
    os.kill(writer, signal.SIGCONT)
    assert bench.end_of(going_on) == ("Completed", "1 of 2 rounds are done.")
    same_bytes(run, alone, 1)


@pytest.mark.long
def test_retry_does_the_failed_stage_and_shows_the_others_as_cached(bench: Bench, alone: Path) -> None:
    run = bench.home / "retried"
    fault = {
        "GRPO_ROUNDS_FAULT": "after-rename:rounds/0001/rewards/.done-shard-00000.parquet.json"
    }  # a second try passes it
    deployment = bench.register(run, env=fault)["next-round"]
    bench.worker()
    lets_go = "prefect.flow_runs.worker - Check whether"  # before it says that, a worker takes a retry for the old run
    before = bench.worker_log().count(lets_go)
    flow_run = bench.start(deployment)
    assert bench.end_of(flow_run)[0] == "Crashed"
    until(lambda: bench.worker_log().count(lets_go) > before)
    bench.retry(flow_run)
    until(lambda: bench.state(flow_run)[0] != "Crashed")
    assert bench.end_of(flow_run) == ("Completed", "1 of 2 rounds are done.")
    stages = bench.stages(run, 1)
    assert [stages[name][-1] for name in ("plan_round", "generate_rollouts")] == ["Cached", "Cached"]
    assert [stages[name][-1] for name in ("score_rewards", "update_policy")] == ["Completed", "Completed"]
    same_bytes(run, alone, 1)


@pytest.mark.long
def test_a_cancelled_round_is_cancelled_and_a_worker_that_leaves_leaves_a_run_to_retry(
    bench: Bench, alone: Path
) -> None:
    run = bench.home / "stopped"
    deployment = bench.register(run, tags=("stopped",), env={FREEZE: ROLLOUTS})["next-round"]
    bench.worker()
    flow_run = bench.start(deployment)
    writer = frozen(run)
    bench.set_state(flow_run, "CANCELLING")
    cancelled = time.monotonic()
    let_go_when_told_to_stop(writer)
    assert bench.end_of(flow_run)[0] == "Cancelled"
    assert bench.inner(run)["round-0001"] == "Cancelled"
    # Before the worker has seen to it, it would cancel a retry. On a loaded machine it finds nothing left to do, and
    # doesn't say so; what it hears again is a minute old at most.
    forgotten = cancelled + 65
    until(lambda: "Cancelled flow run 'stopped'" in bench.worker_log() or time.monotonic() > forgotten)
    bench.register(run, tags=("stopped",), env={FREEZE: REWARDS})
    with taken_for_dead("stopped"):
        bench.retry(flow_run)
        frozen(run, but=writer)
        bench.tell_worker(signal.SIGTERM)  # a worker that leaves kills what it started, and says nothing about it
        bench.await_worker()
        assert bench.end_of(flow_run)[0] == "Crashed"
    # A new worker hears of the last minute's events once more, and may take that cancel for one of the retry.
    time.sleep(max(0.0, forgotten - time.monotonic()))
    bench.worker()
    bench.retry(flow_run)
    until(lambda: bench.state(flow_run)[0] not in ("Crashed", "Cancelled"))
    assert bench.end_of(flow_run) == ("Completed", "1 of 2 rounds are done.")
    same_bytes(run, alone, 1)
