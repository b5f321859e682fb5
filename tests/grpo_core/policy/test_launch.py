import json
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from grpo_core import interrupt
from grpo_core.errors import UserError
from grpo_core.models import ModelConfig
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import NonFiniteUpdate, UpdateConfig
from grpo_core.policy.job import UpdateJob, read_rollouts, write_rollouts
from grpo_core.policy.launch import _Conversation, _failure
from grpo_core.policy.lora_config import LoraConfig
from grpo_core.policy.rank import CHECKPOINT, Parent, end_file

TORCHRUN_SAYS = """
============================================================
grpo_core.policy.rank_worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-12-01_23:00:00
  host      : somewhere
  rank      : {other} (local_rank: {other})
  exitcode  : {other_code} (pid: 12)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_23:00:00
  host      : somewhere
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 11)
  error_file: <N/A>
"""


class Kept:
    """Checkpoints in a folder, due every second step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def newest(self) -> Iterator[Path | None]:
        yield None

    def due(self, steps_done: int, steps: int) -> bool:
        return steps_done % 2 == 0 or interrupt.asked()

    def save(self, steps_done: int, produce: Callable[[Path], None]) -> None:
        target = self.folder / f"kept-{steps_done}"
        target.mkdir()
        produce(target)


@pytest.fixture(autouse=True)
def nobody_asks() -> Iterator[None]:
    yield
    interrupt.ask(False)


def test_rank_0_is_heard_and_answered_until_the_end(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).mkdir()
    (tmp_path / CHECKPOINT / "place.json").write_text("{}")
    answers: list[dict[str, bool]] = []
    seen: list[tuple[int, int]] = []
    over = threading.Event()

    def rank(address: str) -> None:
        parent = Parent(address)
        parent.tell({"done": 1, "total": 4})
        answers.append(parent.ask({"step": 1, "steps": 4}))
        answers.append(parent.ask({"step": 2, "steps": 4}))
        answers.append(parent.ask({"checkpoint": 2}))
        interrupt.ask()
        answers.append(parent.ask({"step": 3, "steps": 4}))
        parent.tell({"done": 3, "total": 4})
        over.set()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        talking = threading.Thread(target=rank, args=(str(tmp_path / "s"),))
        talking.start()
        told = _Conversation(server, tmp_path, Kept(tmp_path), lambda done, total: seen.append((done, total)))
        told.until(over.is_set)
        talking.join()
    assert answers == [
        {"save": False, "stop": False},
        {"save": True, "stop": False},
        {"saved": True},
        {"save": True, "stop": True},
    ]
    assert seen == [(1, 4), (3, 4)]  # what was said last is heard, too
    assert (tmp_path / "kept-2/place.json").read_text() == "{}"
    assert list((tmp_path / CHECKPOINT).iterdir()) == []


def ended(folder: Path, rank: int, kind: str, message: str = "", at: float = 1.0) -> None:
    end_file(folder, rank).write_text(json.dumps({"kind": kind, "message": message, "at": at}))


def logged(folder: Path, rank: int, text: str) -> None:
    log = folder / f"logs/none_x/attempt_0/{rank}/stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(text)


def said(folder: Path, rank: int, code: int, other: int, other_code: int) -> None:
    text = TORCHRUN_SAYS.format(rank=rank, code=code, other=other, other_code=other_code)
    (folder / "torchrun.log").write_text(text)


def test_a_rank_that_was_killed_is_named_before_those_that_lost_it(tmp_path: Path) -> None:
    ended(tmp_path, 0, "failed", at=5.0)
    logged(tmp_path, 0, "RuntimeError: Connection closed by peer")
    logged(tmp_path, 1, "what it said\nbefore")
    said(tmp_path, 0, 1, 1, -signal.SIGKILL)
    found = str(_failure(tmp_path, 2))
    assert found.startswith("Rank 1 of the update's 2 was killed by SIGKILL, so all were ended; run the same command")
    assert found.endswith("(the end of its log: what it said before).")


def test_a_rank_ended_by_torchrun_is_not_the_one_to_blame(tmp_path: Path) -> None:
    ended(tmp_path, 1, "failed")
    logged(tmp_path, 1, "Traceback\nOutOfMemoryError: " + "x" * 2000)
    said(tmp_path, 1, 1, 0, -signal.SIGTERM)
    found = str(_failure(tmp_path, 2))
    assert found.startswith("Rank 1 of the update's 2 failed")
    assert len(found) < 900
    assert "\n" not in found


def test_what_a_rank_says_itself_is_passed_on(tmp_path: Path) -> None:
    said(tmp_path, 0, 1, 1, 1)
    ended(tmp_path, 0, "failed", at=1.0)
    ended(tmp_path, 1, "user", "'x' is gone; mend it.", at=2.0)
    found = _failure(tmp_path, 2)
    assert isinstance(found, UserError)
    assert str(found) == "'x' is gone; mend it."
    ended(tmp_path, 0, "non-finite", "The loss is nan.", at=1.0)
    found = _failure(tmp_path, 2)
    assert isinstance(found, NonFiniteUpdate)
    assert str(found) == "The loss is nan."


def test_ranks_that_never_began_are_told_by_torchruns_own_words(tmp_path: Path) -> None:
    (tmp_path / "torchrun.log").write_text("No module named nothing")
    assert "4 ranks of the update could not be started (the end of the log: No module named nothing)" in str(
        _failure(tmp_path, 4)
    )


def test_a_job_goes_to_the_ranks_number_for_number(tmp_path: Path) -> None:
    update = UpdateConfig(max_grad_norm=math.inf, learning_rate=0.1 / 3, lora=LoraConfig(targets=("q_proj",)), ranks=2)
    job = UpdateJob(
        policy=tmp_path,
        reference=None,
        trainer_state=tmp_path / "state",
        update=update,
        model=ModelConfig(device="cpu"),
        temperature=0.7,
        max_new_tokens=5,
        seed=2**63,
        round_number=3,
    )
    assert UpdateJob.model_validate(json.loads(json.dumps(job.model_dump(mode="json")))) == job
    one = TrainingRollout("p", [1, 2], [3, 4], [-0.1, -1 / 3], 1 / 7, reward=None, rollout_id="r", sample_index=4)
    write_rollouts(tmp_path / "rollouts.parquet", [one])
    (two,) = read_rollouts(tmp_path / "rollouts.parquet")
    for name in TrainingRollout.__slots__:
        was, found = getattr(one, name), getattr(two, name)
        assert np.array_equal(was, found) if isinstance(was, np.ndarray) else was == found, name
    assert two.old_logprobs.dtype == np.float32
