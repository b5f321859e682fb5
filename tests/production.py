"""What deployments/compose.yaml starts, started without containers: its very commands and environment, on loopback."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from support import ROOT, end, free_port

COMPOSE = ROOT / "deployments/compose.yaml"
VARIABLE = re.compile(r"\$\{(\w+)(?::(-|\?)([^}]*))?\}")
SECRETS = {
    "POSTGRES_PASSWORD": "pg-Zq7vT2mKx",
    "PREFECT_AUTH": "grpo:prefect-Yw8rLdBn",
    "AWS_ACCESS_KEY_ID": "AKIAHX3FQWVJ",
    "AWS_SECRET_ACCESS_KEY": "aws-Np4sGcJe",
    "MLFLOW_TRACKING_USERNAME": "watcher",
    "MLFLOW_TRACKING_PASSWORD": "mlflow-Kt5bXfRu",
    "HF_TOKEN": "hf_Dm6yHaVo",
}
# What nobody may find in anything that a run leaves.
HIDDEN = [value.rpartition(":")[2] for name, value in SECRETS.items() if name != "MLFLOW_TRACKING_USERNAME"]


def postgres_binaries() -> Path | None:
    """The folder of PostgreSQL's programs, the newest version's; None where it is not installed."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent  # a link stands alone, without the other programs
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in versions), key=lambda path: int(path.parent.name), default=None)


class Production:
    """The services of compose.yaml by name, each a process of this machine with ports of this test's own."""

    def __init__(self, home: Path, **variables: str) -> None:
        self.home = home
        self.ports = {"5432": free_port(), "4200": free_port(), "5000": free_port(), "8080": free_port()}
        self._variables = SECRETS | variables
        self._places = {
            "@postgres:5432": f"@127.0.0.1:{self.ports['5432']}",
            "//prefect-server:4200": f"//127.0.0.1:{self.ports['4200']}",
            "//mlflow-server:5000": f"//127.0.0.1:{self.ports['5000']}",
            **{f"127.0.0.1:{port}": f"127.0.0.1:{own}" for port, own in self.ports.items()},
            "0.0.0.0": "127.0.0.1",
            "/srv/": f"{home}/srv/",
            "s3://": f"{home}/buckets/",
        }
        self.compose: dict[str, Any] = self._here(yaml.safe_load(COMPOSE.read_text()))
        (home / "srv").mkdir()

    def _here(self, value: Any) -> Any:
        """Compose's text with variables put in, and every place and port that of this test."""
        if isinstance(value, dict):
            return {key: self._here(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._here(item) for item in value]
        if not isinstance(value, str):
            return self.ports.get(str(value), value) if isinstance(value, int) else value
        value = VARIABLE.sub(lambda found: self._variables.get(found[1]) or found[3] or "", value)
        if value in self.ports:
            return str(self.ports[value])
        pattern = "|".join(re.escape(place) for place in self._places)
        return re.sub(pattern, lambda found: self._places[found[0]], value)

    def environment(self, service: str) -> dict[str, str]:
        return {key: str(value) for key, value in self.compose["services"][service]["environment"].items()}

    def command(self, service: str) -> list[str]:
        return list(map(str, self.compose["services"][service]["command"]))

    def is_healthy(self, service: str) -> bool:
        """Whether the service's own health check says so."""
        kind, *words = self.compose["services"][service]["healthcheck"]["test"]
        assert kind == "CMD"
        return subprocess.run(program(words), cwd=ROOT, capture_output=True).returncode == 0

    def log(self, service: str) -> str:
        return (self.home / f"{service}.log").read_text()

    @contextmanager
    def running(self, service: str, **more: str) -> Iterator[None]:
        """Start a service, and stop it at the end; it may not be ready yet."""
        with (self.home / f"{service}.log").open("ab") as log:
            started = subprocess.Popen(
                program(self.command(service)), cwd=self.home, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | self.environment(service) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"} | more,
            )  # fmt: skip
        try:
            yield
        finally:
            end(started)

    def await_health(self, service: str) -> None:
        deadline = time.monotonic() + 180
        while not self.is_healthy(service):
            assert time.monotonic() < deadline, self.log(service)[-3000:]
            time.sleep(1)

    @contextmanager
    def postgres(self) -> Iterator[None]:
        """PostgreSQL with the databases that compose.yaml makes; it refuses to be root's."""
        binaries = postgres_binaries()
        assert binaries is not None
        account: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix="grpo-postgres-") as folder:
            if os.getuid() == 0:
                account = {"user": "postgres", "group": "postgres", "extra_groups": []}
                shutil.chown(folder, "postgres", "postgres")
            password = Path(folder, "password")
            password.write_text(SECRETS["POSTGRES_PASSWORD"])
            password.chmod(0o644)
            user = self.environment("postgres")["POSTGRES_USER"]
            words = ["--pgdata", f"{folder}/data", "--username", user, "--pwfile", password, "--auth", "scram-sha-256"]
            subprocess.run(
                [binaries / "initdb", *words, "--encoding", "UTF8", "--locale", "C", "--no-sync"],
                check=True, capture_output=True, **account, cwd=folder,
            )  # fmt: skip
            where = ["-p", str(self.ports["5432"]), "-h", "127.0.0.1", "-k", folder, "-F"]
            with (self.home / "postgres.log").open("wb") as log:
                server = subprocess.Popen(
                    [binaries / "postgres", "-D", f"{folder}/data", *where],
                    stdout=log,
                    stderr=log,
                    **account,
                    cwd=folder,
                )
            try:
                self.await_health("postgres")
                for statement in self.compose["configs"]["databases"]["content"].splitlines():
                    self.execute(statement)
                yield
            finally:
                server.send_signal(signal.SIGINT)  # the fast shutdown
                server.wait(timeout=60)

    def execute(self, statement: str) -> None:
        """Run one statement as the databases' owner."""
        import psycopg

        user, password = self.environment("postgres")["POSTGRES_USER"], SECRETS["POSTGRES_PASSWORD"]
        connection = psycopg.connect(
            host="127.0.0.1", port=self.ports["5432"], user=user, password=password, dbname="postgres"
        )
        connection.autocommit = True
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute(statement)

    def dump(self, database: str) -> str:
        """All that a database holds, as text."""
        binaries = postgres_binaries()
        assert binaries is not None
        user = self.environment("postgres")["POSTGRES_USER"]
        where = ["--host", "127.0.0.1", "--port", str(self.ports["5432"]), "--username", user, "--dbname", database]
        done = subprocess.run(
            [binaries / "pg_dump", *where], env=os.environ | {"PGPASSWORD": SECRETS["POSTGRES_PASSWORD"]},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout


def program(words: Sequence[str]) -> list[str]:
    """A command of the image's as this machine has it: Python's programs are those beside the Python at work."""
    first, *rest = words
    if first == "python":
        return [sys.executable, *rest]
    beside = Path(sys.executable).with_name(first)
    if beside.exists():
        return [str(beside), *rest]
    binaries = postgres_binaries()
    return [str(binaries / first) if binaries and (binaries / first).exists() else first, *rest]


def files_with(folder: Path, secrets: Sequence[str]) -> Mapping[str, list[str]]:
    """Which of these texts stand in which file below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            held = path.read_bytes()
            told = [secret for secret in secrets if secret.encode() in held]
            if told:
                found[str(path.relative_to(folder))] = told
    return found
