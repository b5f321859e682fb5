"""Checkpoints inside one round's update: ``rounds/0007/update_checkpoint/step-000016``, gone once the round is done.

Each is an artifact with a manifest of its own, proven byte by byte before it is trusted, and belongs to one
fingerprint: a changed config or input never goes on from another's checkpoint.
"""

import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_core import interrupt
from grpo_core.artifacts import Artifact, ArtifactWriter
from grpo_core.fingerprint import Fingerprint
from tasks.run import Run, round_folder

FORMAT = 2  # raised when older checkpoints can't be gone on from


class UpdateCheckpoints:
    """``grpo_core.policy.checkpoint.Checkpoints`` in a run's folder.

    Args:
        fingerprint: of the update that they belong to.
        every: optimiser steps between two of them; 0 keeps none.
    """

    def __init__(self, run: Run, round_number: int, fingerprint: Fingerprint, every: int) -> None:
        self._run = run
        self._folder = checkpoint_folder(round_number)
        self._fingerprint = Fingerprint("update_checkpoint", round_number, FORMAT, {}, {"update": fingerprint.digest})
        self._every = every

    @contextmanager
    def newest(self) -> Iterator[Path | None]:
        """The newest whole checkpoint as a local folder, or None."""
        for artifact in reversed(self._all()):
            if artifact.condition(self._fingerprint).done:
                with self._run.store.local_folder(artifact.folder) as local:
                    yield local
                return
        yield None

    def due(self, steps_done: int, steps: int) -> bool:
        """After every so many steps and when a stop was asked for, but not after the last: its files come next."""
        if not self._every or steps_done >= steps:
            return False
        return steps_done % self._every == 0 or interrupt.asked()

    def save(self, steps_done: int, produce: Callable[[Path], None]) -> None:
        """Write a checkpoint; older ones go only when it is whole."""
        artifact = self._run.artifact(posixpath.join(self._folder, f"step-{steps_done:06d}"))
        writer = ArtifactWriter(artifact, self._fingerprint)
        writer.write_folder(produce)
        writer.finish()
        for other in self._all():
            if other.location != artifact.location:
                self._run.store.delete(other.location)

    def _all(self) -> list[Artifact]:
        names = {name.partition("/")[0] for name in self._run.store.files(self._folder)}
        return [self._run.artifact(posixpath.join(self._folder, name)) for name in sorted(names)]


def checkpoint_folder(round_number: int) -> str:
    """Where a round keeps the checkpoints of its update."""
    return round_folder(round_number, "update_checkpoint")
