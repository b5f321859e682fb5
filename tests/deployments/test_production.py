"""deployments/compose.yaml for real, without containers: servers on PostgreSQL, registration, a worker, one run."""

import hashlib
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import patient
import pytest
import yaml
from bench import SMALL, Bench, until
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from production import COMPOSE, HIDDEN, SECRETS, VARIABLE, Production, files_with, postgres_binaries
from support import ROOT, TINY, digests, mlflow_record

ENV_EXAMPLE = ROOT / "deployments/env.example"
BLOCK = "block-Wd9xJzQe"  # a password that stands in a block alone
needs_postgres = pytest.mark.skipif(postgres_binaries() is None, reason="PostgreSQL's programs are not installed")


def test_every_variable_is_explained_and_has_the_default_that_is_told() -> None:
    used = {name: (kind, default) for name, kind, default in VARIABLE.findall(COMPOSE.read_text())}
    told = dict(
        line.partition("=")[::2] for line in ENV_EXAMPLE.read_text().splitlines() if line and not line.startswith("#")
    )
    assert set(told) == set(used)
    for name, (kind, default) in used.items():
        assert told[name].strip('"') == default, name
        assert kind in ("-", "?"), f"{name} may be empty by accident"
    must = {name for name, (kind, _) in used.items() if kind == "?"}
    assert must == {"POSTGRES_PASSWORD", "PREFECT_AUTH", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


def test_images_are_pinned_and_ports_are_open_to_this_machine_only() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    services: dict[str, Any] = compose["services"]
    for name, service in services.items():
        assert "build" in service or re.search(r":\d+\.\d+$", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        for needed, condition in service.get("depends_on", {}).items():
            healthy = condition["condition"] == "service_healthy"
            assert not healthy or "healthcheck" in services[needed], (name, needed)
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in compose["volumes"], (name, volume)
        for config in service.get("configs", []):
            assert config["source"] in compose["configs"], (name, config)
    base = re.findall(r"^FROM (\S+)$", (ROOT / "deployments/Dockerfile").read_text(), re.MULTILINE)
    assert all(re.search(r":\d+\.\d+\.\d+-", image) for image in base)


def test_what_the_image_copies_is_there() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "deployments/Dockerfile").read_text(), re.MULTILINE)
    assert all((ROOT / path).exists() for paths in copied for path in paths.split())


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    """PostgreSQL and MLflow's server, up."""
    made = Production(tmp_path_factory.mktemp("production"))
    with ExitStack() as stack:
        stack.enter_context(made.postgres())
        stack.enter_context(made.running("mlflow-server", MLFLOW_WORKERS="1"))
        yield made


@pytest.fixture(scope="module")
def bench(production: Production) -> Iterator[Bench]:
    """Prefect's server, and what uses both servers."""

    @contextmanager
    def server() -> Iterator[dict[str, str]]:
        with production.running("prefect-server"):
            production.await_health("prefect-server")
            yield production.environment("worker")

    started = Bench(production.home, server)
    started.worker_command = tuple(production.command("worker"))
    try:
        production.await_health("mlflow-server")
        yield started
    finally:
        started.close()


@pytest.fixture(scope="module")
def run(production: Production, bench: Bench) -> Path:
    """Two rounds by the registered campaign, on the worker, through a restart of Prefect's server."""
    from prefect.blocks.system import Secret
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolUpdate

    words = production.command("register")
    config, place, pool = words[2], words[words.index("--run-dir") + 1], words[words.index("--pool") + 1]
    values = yaml.safe_load(TINY.read_text())
    for key, value in (SMALL | {"promotion.upload": "true", "tracking.traces": "6"}).items():
        section, _, name = key.partition(".")
        values.setdefault(section, {})[name] = yaml.safe_load(value)
    Path(config).write_text(yaml.safe_dump(values))
    registered = bench.grpo_rounds(*words[1:])
    assert registered.returncode == 0, registered.stdout + registered.stderr

    # As docs/operate.md says: a secret of Prefect's, given to all flow runs by the pool.
    address = bench.environment["MLFLOW_TRACKING_URI"].replace("://", f"://watcher:{BLOCK}@")
    url, auth = bench.environment["PREFECT_API_URL"], SECRETS["PREFECT_AUTH"]
    with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: auth}):
        Secret(value=address).save("mlflow-uri")
        with get_client(sync_client=True) as client:
            template = client.read_work_pool(pool).base_job_template
            properties = template["variables"]["properties"]
            properties["env"]["default"] = {"MLFLOW_TRACKING_URI": "{{ prefect.blocks.secret.mlflow-uri }}"}
            properties["command"]["default"] = " ".join(bench.warm)
            client.update_work_pool(pool, WorkPoolUpdate(base_job_template=template))

    bench.everything["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:1"  # so that only the block's address works
    bench.worker()
    campaign = bench.get("/deployments/name/campaign/tiny")["id"]
    flow_run = bench.start(campaign, rounds=2)
    until((Path(place) / "rounds/0001/rollouts/shard-00000.parquet").exists, bench.worker_log, 240)
    writer = int(json.loads((Path(place) / ".lock-holder.json").read_text())["pid"])
    os.kill(writer, signal.SIGSTOP)
    bench.restart_server()
    os.kill(writer, signal.SIGCONT)
    assert bench.end_of(flow_run)[0] == "Completed"
    return Path(place)


@needs_postgres
@pytest.mark.slow
@pytest.mark.distributed
def test_services_are_healthy_and_ask_for_the_password(production: Production, bench: Bench, run: Path) -> None:
    for service in ("postgres", "worker"):
        production.await_health(service)
    with patient.client() as anybody:
        asked = anybody.post(f"{bench.environment['PREFECT_API_URL']}/flow_runs/filter", json={})
    assert asked.status_code == httpx.codes.UNAUTHORIZED
    settings = bench.get("/admin/settings")["server"]
    assert settings["concurrency"]["lease_storage"].endswith("filesystem")
    page = f"http://127.0.0.1:{production.ports['5000']}/api/2.0/mlflow/experiments/get?experiment_id=0"
    with patient.client() as anybody:
        answers = [anybody.get(page, headers={"Host": host}) for host in ("mlflow-server:5000", "evil.example")]
    assert [answer.status_code for answer in answers] == [httpx.codes.OK, httpx.codes.FORBIDDEN]


@needs_postgres
@pytest.mark.slow
@pytest.mark.distributed
def test_a_run_through_servers_is_the_one_left_alone_and_so_is_its_record(bench: Bench, run: Path) -> None:
    alone = bench.home / "alone/run"
    bench.everything["MLFLOW_TRACKING_URI"] = f"sqlite:///{alone.parent}/mlflow.db"
    done = bench.grpo_rounds("train", bench.home / "srv/run.yaml", "--run-dir", alone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(run) == digests(alone)
    told, expected = mlflow_record(run, bench.environment["MLFLOW_TRACKING_URI"]), mlflow_record(alone)
    assert set(expected) == {"tiny", "round-0001", "round-0002"}
    assert len(expected["round-0002"]["traces"]) == 6
    assert told == expected


@needs_postgres
@pytest.mark.slow
@pytest.mark.distributed
def test_the_record_is_proven_and_holds_the_weights(bench: Bench, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    uri = bench.environment["MLFLOW_TRACKING_URI"]
    bench.everything["MLFLOW_TRACKING_URI"] = uri
    before = mlflow_record(run, uri)
    for words in (("track", run), ("audit", "verify", run)):
        done = bench.grpo_rounds(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert mlflow_record(run, uri) == before
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (version,) = mlflow.MlflowClient().search_model_versions("name = 'tiny' and tags.`grpo_rounds.round` = '1'")
    weights = Path(mlflow.artifacts.download_artifacts(f"models:/tiny/{version.version}"))
    stored = json.loads((run / "rounds/0001/policy/manifest.json").read_text())["files"]
    uploaded = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in weights.rglob("*.safetensors")}
    assert uploaded
    assert uploaded == {name: stored[name]["sha256"] for name in uploaded}


@needs_postgres
@pytest.mark.slow
@pytest.mark.distributed
def test_a_lost_record_is_rebuilt_in_an_empty_database(production: Production, bench: Bench, run: Path) -> None:
    production.execute("CREATE DATABASE rebuilt")
    uri = production.environment("mlflow-server")["MLFLOW_BACKEND_STORE_URI"].replace("/mlflow", "/rebuilt")
    bench.everything["MLFLOW_TRACKING_URI"] = uri
    done = bench.grpo_rounds("track", run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [secret for secret in HIDDEN if secret in done.stdout + done.stderr]
    assert mlflow_record(run, uri) == mlflow_record(run, bench.environment["MLFLOW_TRACKING_URI"])


@needs_postgres
@pytest.mark.slow
@pytest.mark.distributed
def test_no_secret_is_in_anything_that_is_left(production: Production, bench: Bench, run: Path) -> None:
    hidden = [*HIDDEN, BLOCK]
    assert files_with(production.home, ["rounds/0001"])  # the search finds what is there
    assert files_with(production.home, hidden) == {}
    for database in ("prefect", "mlflow"):
        dump = production.dump(database)
        assert "tiny" in dump
        assert [secret for secret in hidden if secret in dump] == []
