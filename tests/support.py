"""What tests import from each other: places, a Prefect server, and the comparison of two runs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

import httpx
import stores
import warm

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "configs/tiny.yaml"
DATA = ROOT.parent / "shared/data"


def odd_bytes(samples: Sequence[Any]) -> list[float]:
    """A reward by which the groups of a model that knows nothing have both kinds of rollout."""
    return [float(sum(sample.response.encode()) % 2) for sample in samples]


def by_prompt(samples: Sequence[Any]) -> list[float]:
    """A reward that two of three prompts give always or never: what a band has to find out."""
    kinds = [sum(sample.prompt.encode()) % 3 for sample in samples]
    return [(0.0, 1.0, odd)[kind] for kind, odd in zip(kinds, odd_bytes(samples), strict=True)]


def loads(model: Any) -> Any:
    """What ``update_policy`` takes for a reference: something that loads it, or None."""
    return None if model is None else lambda: model


def digests(run: Path) -> dict[str, object]:
    """Every digested file of a run by name, and what each manifest says but for its moment and its own digest."""
    found: dict[str, object] = {}
    for path in sorted(run.rglob("manifest.json")) + sorted(run.rglob("*.manifest.json")):
        manifest = json.loads(path.read_bytes())
        del manifest["finished_at"], manifest["manifest_sha256"]
        found[str(path.relative_to(run))] = manifest
    return found


def mlflow_record(run: Path, uri: str | None = None) -> dict[str, Any]:
    """What MLflow's store (the one beside the run, or another) holds of it, without times and names of places.

    By run name: params, tags, every point of every metric, dataset inputs, traces, and artifacts by name.
    """
    from mlflow import MlflowClient

    client = MlflowClient(uri or f"sqlite:///{run.parent}/mlflow.db")
    history = client.get_metric_history
    identity = json.loads((run / "run.json").read_text())["run_id"]
    experiment = client.get_experiment_by_name("grpo-rounds")
    assert experiment is not None
    found: dict[str, Any] = {}
    for mirrored in client.search_runs([experiment.experiment_id], max_results=1000):
        tags = mirrored.data.tags
        if identity != tags.get("grpo_rounds.run") and "mlflow.parentRunId" not in tags:
            continue
        run_id, name = mirrored.info.run_id, mirrored.info.run_name
        assert name not in found, f"two runs are called {name}"
        found[name] = {
            "status": mirrored.info.status,
            "params": dict(mirrored.data.params),
            "tags": sorted(tag for tag in tags if not tag.startswith("mlflow.user")),
            "metrics": {
                key: sorted((p.step, 0 if key.startswith("seconds/") else p.value) for p in history(run_id, key))
                for key in mirrored.data.metrics
            },
            "inputs": sorted(item.dataset.digest for item in mirrored.inputs.dataset_inputs),
            "artifacts": sorted(_artifacts(client, run_id, "")),
            "traces": sorted(_traces(client, experiment.experiment_id, run_id)),
        }
    return found


def _traces(client: Any, experiment_id: str, run_id: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each trace of a run by its rollout, with what is said on it."""
    for found in client.search_traces(locations=[experiment_id], run_id=run_id, max_results=500):
        assert len(found.data.spans) == 1
        yield found.info.client_request_id, sorted((a.name, str(a.feedback.value)) for a in found.info.assessments)


def _artifacts(client: Any, run_id: str, folder: str) -> Iterator[tuple[str, int | None]]:
    for item in client.list_artifacts(run_id, folder or None):
        if item.is_dir:
            yield from _artifacts(client, run_id, item.path)
        else:
            # Pictures and tables hold wall-clock figures; tables of rollouts do not.
            yield item.path, item.file_size if item.path.endswith(".parquet") else None


def free_port() -> int:
    """A port that nobody listens at, below those that the system gives to connections: nobody else comes upon it."""
    while True:
        port = SystemRandom().randint(15_000, 30_000)  # not by the seed that hypothesis sets in every process
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def end(process: subprocess.Popen[Any]) -> None:
    """Ask the group that a process leads to leave, and kill what is left of it after half a minute."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def await_server(url: str, process: subprocess.Popen[Any], log: Path, seconds: float = 300) -> None:
    """Wait until a server answers with 200. Raises RuntimeError with the end of its log when it never does."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=10, trust_env=False).is_success:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
        time.sleep(0.1)


@contextmanager
def prefect_server(home: Path, port: int | None = None, **settings: str) -> Iterator[dict[str, str]]:
    """A real Prefect server on loopback with its own database and result storage; yields the environment to use it."""
    home.mkdir(parents=True, exist_ok=True)
    stores.copy_prefect(home)
    port = port or free_port()
    url = f"http://127.0.0.1:{port}/api"
    environment = {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": url,
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "results"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
    }
    with (home / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*warm.program(), "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            env=os.environ | environment | settings,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        await_server(f"{url}/health", server, home / "server.log")
        stores.keep_prefect(home)
        yield environment
    finally:
        end(server)


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


def in_prefect(run: Path, environment: dict[str, str]) -> dict[str, list[list[str]]]:
    """Flow runs and task runs of a training run, as a real server tells them."""
    identity = json.loads((run / "run.json").read_text())["run_id"]
    told = subprocess.run(
        [*warm.program(), "python", "-c", QUERY, identity],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(told.stdout)
