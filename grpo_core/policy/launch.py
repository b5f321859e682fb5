"""An update by several ranks: torchrun in a process group of its own, heard and answered until it ends, or ended.

Nothing of it outlives this process, and no rank outlives another: torchrun ends the others when one fails, and whatever
is left is killed here.
"""

import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from grpo_core import interrupt
from grpo_core.errors import NotHere, UserError
from grpo_core.models import resolve_device
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.checkpoint import Checkpoints
from grpo_core.policy.config import NonFiniteUpdate
from grpo_core.policy.job import Trained, UpdateJob, write_rollouts
from grpo_core.policy.rank import (
    CHECKPOINT,
    JOB_FILE,
    METRICS_FILE,
    POLICY,
    REFERENCE_FILE,
    RESUME,
    ROLLOUTS_FILE,
    STEPS_FILE,
    TRAINER_STATE,
    end_file,
)
from grpo_core.policy.update import UpdateMetrics
from grpo_core.schemas import REFERENCE, STEPS, Progress

_REPOSITORY = Path(__file__).resolve().parents[2]
_LOOK_SECONDS = 0.2
_LOG_CHARACTERS = 600
_ENDED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")


def run_ranks(
    job: UpdateJob, rollouts: Sequence[TrainingRollout], checkpoints: Checkpoints, progress: Progress, folder: Path
) -> Trained:
    """Do a job by ``job.update.ranks`` processes on this machine, one a GPU where the model runs on GPUs.

    Args:
        folder: an empty one for the job's own files. What is trained lies there when this returns, and the savers of
            the result move it, so that it should be in the file system where it is to be saved.

    Raises:
        Stopped: it was asked for; a checkpoint was saved where ``checkpoints`` found it due.
        NonFiniteUpdate: as ``update_policy``.
        UserError: a rank failed or was killed; the sentence shows the end of its log.
    """
    ranks = job.update.ranks
    _require_devices(job, ranks)
    (folder / JOB_FILE).write_text(json.dumps(job.model_dump(mode="json")), encoding="utf-8")  # knows infinity, too
    write_rollouts(folder / ROLLOUTS_FILE, rollouts)
    with ExitStack() as stack:
        newest = stack.enter_context(checkpoints.newest())
        if newest is not None:
            (folder / RESUME).symlink_to(newest.resolve(), target_is_directory=True)
        # In the system's own place: an address has to be short.
        address = str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grpo-rounds-")), "update"))
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(address)
        server.listen()
        log = stack.enter_context((folder / "torchrun.log").open("w"))
        process = _start(ranks, folder, address, log)
        stack.callback(_end, process)
        _Conversation(server, folder, checkpoints, progress).until(lambda: process.poll() is not None)
    if process.returncode != 0:
        raise _failure(folder, ranks)
    if any(_end_of(folder, rank).get("kind") == "stopped" for rank in range(ranks)):
        raise interrupt.Stopped
    metrics = UpdateMetrics(**json.loads((folder / METRICS_FILE).read_text(encoding="utf-8")))
    return Trained(
        metrics,
        pq.read_table(folder / STEPS_FILE, schema=STEPS).cast(STEPS),
        pq.read_table(folder / REFERENCE_FILE, schema=REFERENCE).cast(REFERENCE),
        lambda target: _move(folder / TRAINER_STATE, target),
        lambda target: _move(folder / POLICY, target),
    )


class _Conversation:
    """What rank 0 says and is answered."""

    def __init__(self, server: socket.socket, folder: Path, checkpoints: Checkpoints, progress: Progress) -> None:
        self._server = server
        self._folder = folder
        self._checkpoints = checkpoints
        self._progress = progress

    def until(self, ended: Callable[[], bool]) -> None:
        """Listen and answer; returns once ``ended`` says so and everything that was said before has been heard."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            heard: dict[Any, bytes] = {}
            is_over = False
            while not is_over:
                is_over = ended()
                for key, _ in selector.select(0 if is_over else _LOOK_SECONDS):
                    if key.fileobj is self._server:
                        line, _ = self._server.accept()
                        selector.register(line, selectors.EVENT_READ)
                        heard[line] = b""
                        continue
                    line = key.fileobj  # type: ignore[assignment]
                    received = _receive(line)
                    if not received:
                        selector.unregister(line)
                        line.close()
                        continue
                    *whole, heard[line] = (heard[line] + received).split(b"\n")
                    for message in whole:
                        if answer := self._hear(json.loads(message)):
                            line.sendall((json.dumps(answer) + "\n").encode())

    def _hear(self, message: dict[str, Any]) -> dict[str, Any]:
        if "done" in message:
            self._progress(message["done"], message["total"])
            return {}
        if "checkpoint" in message:
            self._checkpoints.save(message["checkpoint"], lambda target: _move(self._folder / CHECKPOINT, target))
            return {"saved": True}
        stop = interrupt.asked()  # before due, which asks again: what stops is saved
        return {"save": self._checkpoints.due(message["step"], message["steps"]), "stop": stop}


def _receive(line: socket.socket) -> bytes:
    try:
        return line.recv(1 << 16)
    except ConnectionResetError:
        return b""


def _start(ranks: int, folder: Path, address: str, log: Any) -> subprocess.Popen[bytes]:
    paths = [str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-P", "-m", "grpo_core.policy.torchrun", str(os.getpid())]
    command += ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "0", "--monitor-interval", "0.1"]
    command += ["--redirects", "3", "--log-dir", str(folder / "logs")]
    command += ["-m", "grpo_core.policy.rank_worker", str(folder), address]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C at the terminal is for the parent, which asks the ranks to stop
        env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill torchrun; the ranks die with it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _require_devices(job: UpdateJob, ranks: int) -> None:
    import torch

    if resolve_device(job.model).type == "cuda" and torch.cuda.device_count() < ranks:
        raise NotHere(
            f"update.ranks is {ranks}, but this machine has {torch.cuda.device_count()} GPUs, and each rank takes one; "
            "lower update.ranks."
        )


def _failure(folder: Path, ranks: int) -> Exception:
    """What to say of ranks that failed: the first that knows why, else one that was killed, else the first to end."""
    ends = {rank: _end_of(folder, rank) for rank in range(ranks)}
    by_time = sorted((rank for rank in ends if ends[rank]), key=lambda rank: float(ends[rank]["at"]))
    for rank in by_time:
        if ends[rank]["kind"] == "non-finite":
            return NonFiniteUpdate(ends[rank]["message"])
        if ends[rank]["kind"] == "user":
            return UserError(ends[rank]["message"])
    said = (folder / "torchrun.log").read_text(encoding="utf-8", errors="replace")
    codes = {int(rank): int(code) for rank, code in _ENDED.findall(said)}
    killed = [rank for rank, code in codes.items() if code < 0 and -code != signal.SIGTERM and not ends.get(rank)]
    failed = [rank for rank in by_time if ends[rank]["kind"] == "failed"]
    found = next(iter([*killed, *failed, *codes]), None)
    if found is None:
        return UserError(
            f"The {ranks} ranks of the update could not be started (the end of the log: {_shown(said)}); set "
            "update.ranks to 1, or mend what it says and run the same command again."
        )
    how = f"was killed by {signal.Signals(-codes[found]).name}" if found in killed else "failed"
    logs = sorted((folder / "logs").glob(f"*/attempt_*/{found}/stderr.log"))
    log = logs[-1].read_text(encoding="utf-8", errors="replace") if logs else ""
    return UserError(
        f"Rank {found} of the update's {ranks} {how}, so all were ended; run the same command again, and it goes on "
        f"from the last checkpoint (the end of its log: {_shown(log)})."
    )


def _shown(log: str) -> str:
    return " ".join(log.split())[-_LOG_CHARACTERS:] or "it says nothing"


def _end_of(folder: Path, rank: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(end_file(folder, rank).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # none, or one that was cut off
        return {}
    return found


def _move(source: Path, target: Path) -> None:
    for found in sorted(source.iterdir()):
        shutil.move(found, target / found.name)
