"""One rank of an update in its own process (rank_worker.py), started by torchrun for another that waits (launch.py).

Rank 0 talks with the process that started it all, one JSON object a line: how far it is, whether a checkpoint is due or
a stop was asked for, that a checkpoint lies there. What it is told, all ranks are told, so that they decide alike.
"""

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import transformers

from grpo_core import faults, interrupt
from grpo_core.errors import UserError
from grpo_core.models import resolve_device
from grpo_core.policy.config import NonFiniteUpdate
from grpo_core.policy.job import UpdateJob, read_rollouts, run_job
from grpo_core.policy.ranks import Ranks

JOB_FILE = "job.json"
ROLLOUTS_FILE = "rollouts.parquet"
METRICS_FILE = "metrics.json"
STEPS_FILE = "steps.parquet"
REFERENCE_FILE = "reference.parquet"
POLICY, TRAINER_STATE, CHECKPOINT = "policy", "trainer_state", "checkpoint"  # folders
RESUME = "resume"  # a link to the checkpoint to go on from


def end_file(folder: Path, rank: int) -> Path:
    """Where a rank says how it ended; one that was killed says nothing."""
    return folder / f"rank-{rank}.json"


class Parent:
    """Rank 0's line to the process that started the update."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def tell(self, message: dict[str, Any]) -> None:
        """Say something that needs no answer."""
        self._socket.sendall((json.dumps(message) + "\n").encode())

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say something and wait for the answer. Raises EOFError when the parent is gone."""
        self.tell(message)
        line = self._lines.readline()
        if not line:
            raise EOFError("the process that started the update is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer


class RankCheckpoints:
    """``grpo_core.policy.checkpoint.Checkpoints`` of a rank: where they are kept is the parent's business."""

    def __init__(self, folder: Path, parent: Parent | None) -> None:
        self._folder = folder
        self._parent = parent  # rank 0's

    @contextmanager
    def newest(self) -> Iterator[Path | None]:
        """The checkpoint that the parent found."""
        resume = self._folder / RESUME
        yield resume if resume.exists() else None

    def due(self, steps_done: int, steps: int) -> bool:
        """What the parent says, on every rank; takes up whether it wants the update to stop, too."""
        faults.point(f"rank-step:{os.environ['RANK']}:{steps_done}")
        answer = self._told({"step": steps_done, "steps": steps})
        interrupt.ask(answer["stop"])
        return bool(answer["save"])

    def save(self, steps_done: int, produce: Callable[[Path], None]) -> None:
        """Write the files by all ranks; then the parent puts them in place."""
        folder = self._folder / CHECKPOINT
        folder.mkdir(exist_ok=True)
        produce(folder)
        dist.barrier()
        self._told({"checkpoint": steps_done})

    def _told(self, question: dict[str, Any]) -> dict[str, Any]:
        answer = [None if self._parent is None else self._parent.ask(question)]
        dist.broadcast_object_list(answer, src=0)
        found = answer[0]
        assert found is not None
        return found


def main() -> None:
    """Runs this rank's part and says how it ended; never returns."""
    folder, address = Path(sys.argv[1]), sys.argv[2]
    kind, message = "done", ""
    try:
        _work(folder, address)
    except interrupt.Stopped:
        kind = "stopped"
    except NonFiniteUpdate as error:
        kind, message = "non-finite", str(error)
    except UserError as error:
        kind, message = "user", str(error)
    except BaseException:
        traceback.print_exc()
        kind = "failed"
    end = {"kind": kind, "message": message, "at": time.time()}
    end_file(folder, int(os.environ["RANK"])).write_text(json.dumps(end), encoding="utf-8")
    sys.stderr.flush()
    # Destructors of a process group may wait for ranks that are gone.
    os._exit(0 if kind in ("done", "stopped") else 1)


def _work(folder: Path, address: str) -> None:
    transformers.utils.logging.disable_progress_bar()  # they would fill the log, whose end is shown when a rank fails
    job = UpdateJob.model_validate(json.loads((folder / JOB_FILE).read_text(encoding="utf-8")))
    device = resolve_device(job.model)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    parent = Parent(address) if ranks.rank == 0 else None

    def progress(done: int, total: int) -> None:
        if parent is not None:
            parent.tell({"done": done, "total": total})

    trained = run_job(
        job, read_rollouts(folder / ROLLOUTS_FILE), device, RankCheckpoints(folder, parent), progress, ranks
    )
    trained.save_trainer_state(folder / TRAINER_STATE)
    trained.save_policy(folder / POLICY)
    if ranks.rank == 0:
        pq.write_table(trained.steps, folder / STEPS_FILE)
        pq.write_table(trained.reference, folder / REFERENCE_FILE)
        (folder / METRICS_FILE).write_text(json.dumps(asdict(trained.metrics)), encoding="utf-8")
    dist.barrier()
