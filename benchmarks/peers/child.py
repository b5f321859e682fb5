"""A contestant in a process of its own, so that its peak memory is its own and nothing of another's stays warm."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.work import Work

ROOT = Path(__file__).resolve().parents[2]


def ask(module: str, work: Work) -> dict[str, Any]:
    """The last line that a contestant's module prints, as JSON. Raises SystemExit with its words when it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(work.threads)}
    command = [sys.executable, "-m", module, json.dumps(asdict(work))]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:] or f"{module} ended with {done.returncode}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
