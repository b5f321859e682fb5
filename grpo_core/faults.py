"""Named moments at which a test may kill this process, to prove that a run survives it.

``GRPO_ROUNDS_FAULT=PATTERN`` (a shell pattern over point names, e.g. ``before-rename:rounds/0002/rewards/*``) makes the
first point that matches end the process by SIGKILL, as an out-of-memory killer or a lost machine would.
``GRPO_ROUNDS_FAULT=PATTERN@3`` waits for the third match.
"""

import os
import signal
from fnmatch import fnmatchcase

_seen = 0


def point(name: str) -> None:
    """Mark a moment; does nothing unless the environment asks for a kill here."""
    wanted = os.environ.get("GRPO_ROUNDS_FAULT")
    if not wanted:
        return
    pattern, _, count = wanted.partition("@")
    if not fnmatchcase(name, pattern):
        return
    global _seen
    _seen += 1
    if _seen >= int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
