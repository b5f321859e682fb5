"""What tests import from each other: places, and the comparison of two runs."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "configs/tiny.yaml"
DATA = ROOT.parent / "shared/data"


def odd_bytes(samples: Sequence[Any]) -> list[float]:
    """A reward by which the groups of a model that knows nothing have both kinds of rollout."""
    return [float(sum(sample.response.encode()) % 2) for sample in samples]


def digests(run: Path) -> dict[str, object]:
    """Every digested file of a run by name, and what each manifest says but for its wall-clock figure."""
    found: dict[str, object] = {}
    for path in sorted(run.rglob("manifest.json")) + sorted(run.rglob("*.manifest.json")):
        manifest = json.loads(path.read_bytes())
        del manifest["finished_at"]
        found[str(path.relative_to(run))] = manifest
    return found


QUERY = """
import json, sys
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
identity = sys.argv[1]
with get_client(sync_client=True) as client:
    tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"grpo-run-{identity}"]))
    flows = client.read_flow_runs(flow_run_filter=tagged, limit=200)
    tasks = client.read_task_runs(flow_run_filter=tagged, limit=200)
print(json.dumps({
    "flows": [[f.name, f.state_name] for f in flows],
    "tasks": [[t.name, t.state_name] for t in tasks],
}))
"""


def in_prefect(run: Path, prefect_server: dict[str, str]) -> dict[str, list[list[str]]]:
    """Flow runs and task runs of a training run, as a real server tells them."""
    identity = json.loads((run / "run.json").read_text())["run_id"]
    told = subprocess.run(
        [sys.executable, "-c", QUERY, identity],
        env=os.environ | prefect_server,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(told.stdout)
