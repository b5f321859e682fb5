"""A training run: its folder, its config, and the lock that lets one writer in."""

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
import yaml

from grpo_core.artifacts import Artifact
from grpo_core.config import Change, RunConfig, changes, parse_config, to_yaml
from grpo_core.errors import UserError
from grpo_core.lease import LOCK
from grpo_core.prompts.joining import with_joining_rounds
from grpo_core.storage import Store
from tasks.branch import Branch, open_store, read_branch
from tasks.remote_lock import RunIsHeld as RunIsHeld  # for whoever asks for the lock
from tasks.remote_lock import remote_writer

CONFIG = "config.yaml"
IDENTITY = "run.json"
HOLDER = ".lock-holder.json"
CHANGES = "config-changes.jsonl"


@dataclass(frozen=True)
class Run:
    """One run as every stage sees it; small and picklable, so that it can be sent to another process."""

    uri: str
    config: RunConfig

    @cached_property
    def store(self) -> Store:
        return open_store(self.uri)

    @cached_property
    def branch(self) -> Branch | None:
        """What it is a branch of, and what it makes by itself; None for a run that stands alone."""
        return read_branch(Store(self.uri))

    def __getstate__(self) -> dict[str, Any]:
        return {"uri": self.uri, "config": self.config}

    def artifact(self, folder: str) -> Artifact:
        return Artifact(self.store, folder)

    @cached_property
    def identity(self) -> str:
        """The run's own name for life, given when its folder was made; Prefect and MLflow find it by this."""
        try:
            return str(json.loads(self.store.read_bytes(IDENTITY))["run_id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"'{self.uri}/{IDENTITY}' can't be read; put it back, or remove it and run: grpo-rounds train, which "
                "gives the run a new id and a new record in MLflow."
            ) from error

    @contextlib.contextmanager
    def local_policy(self, round_number: int) -> Iterator[Path]:
        """The policy that a round left, as a local folder. Raises UserError when retention removed it."""
        folder = round_folder(round_number, "policy")
        if self.artifact(folder).is_retired:
            raise UserError(
                f"The policy in '{self.uri}/{folder}' was removed by retention; raise retention.policies in the config "
                "before a run whose old policies shall stay."
            )
        with self.store.local_folder(folder) as local:
            yield local

    def rounds_on_disk(self) -> list[int]:
        """Numbers of the rounds that have anything on disk, in order."""
        folder = self.store.path("rounds")
        if not self.store.fs.isdir(folder):
            return []
        names = (entry.rstrip("/").rsplit("/", 1)[-1] for entry in self.store.fs.ls(folder, detail=False))
        return sorted(int(name) for name in names if name.isdigit())


def round_folder(number: int, artifact: str = "") -> str:
    """``rounds/0007`` or ``rounds/0007/rollouts``. Round 0 holds the policy that training starts from."""
    return f"rounds/{number:04d}/{artifact}".rstrip("/")


def open_run(uri: str) -> Run:
    """The run in a folder, by the config stored there. Raises UserError when there is none."""
    store = Store(uri)
    try:
        values = yaml.safe_load(store.read_bytes(CONFIG))
    except FileNotFoundError as error:
        raise UserError(f"'{uri}' holds no run ({CONFIG} is missing); give the folder that train printed.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"'{uri}/{CONFIG}' is damaged; restore it or train into another --run-dir.") from error
    return Run(store.uri, parse_config(values if isinstance(values, dict) else {}, f"'{uri}/{CONFIG}'"))


def create_or_open(uri: str, config: RunConfig) -> tuple[Run, bool]:
    """The run of this config in a folder, made when the folder is empty; True when it is new.

    A run that exists takes the config over: its stages then find by their fingerprints what has to be done again.

    Raises:
        UserError: the folder holds something else.
    """
    store = Store(uri)
    run = Run(store.uri, config)
    _refuse_foreign(store)
    if run.branch is not None:
        raise UserError(f"'{uri}' is a branch of '{run.branch.parent}'; go on with it by the rescore that made it.")
    is_new = not store.exists(CONFIG) and not run.rounds_on_disk()
    give_identity(store)
    if store.exists(CONFIG):
        config = _joined(store, config)
        run = Run(store.uri, config)
        _remember(store, changes(open_run(uri).config, config))
    store.write_bytes(CONFIG, to_yaml(config).encode())
    return run, is_new


def give_identity(store: Store) -> None:
    """Let a run's folder have a name for life; the one that it has stays."""
    if not store.exists(IDENTITY):
        identity = {"run_id": uuid.uuid4().hex, "created_at": time.time()}
        store.write_bytes(IDENTITY, (json.dumps(identity) + "\n").encode())


def config_changes(uri: str, config: RunConfig) -> list[Change]:
    """What differs between a run's config and this one; nothing when there is no run yet."""
    return changes(open_run(uri).config, with_joining_sources(uri, config)) if Store(uri).exists(CONFIG) else []


def with_joining_sources(uri: str, config: RunConfig) -> RunConfig:
    """The config as a run that exists takes it over: new sources of prompts join it without disturbing its rounds."""
    store = Store(uri)
    return _joined(store, config) if store.exists(CONFIG) else config


def _joined(store: Store, config: RunConfig) -> RunConfig:
    next_round = 1
    while store.exists(f"{round_folder(next_round)}/plan.manifest.json"):
        next_round += 1
    data = with_joining_rounds(config.data, open_run(store.uri).config.data, next_round)
    return config.model_copy(update={"data": data})


def _remember(store: Store, found: list[Change]) -> None:
    """A line for each time that the config changed: when, and every key with its old and new value."""
    if found:
        before = store.read_bytes(CHANGES) if store.exists(CHANGES) else b""
        line = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "changed": {c.key: [c.old, c.new] for c in found}}
        store.write_bytes(CHANGES, before + (json.dumps(line) + "\n").encode())


def _refuse_foreign(store: Store) -> None:
    if not store.exists(CONFIG) and not store.exists(IDENTITY) and store.files(""):
        raise UserError(f"'{store.uri}' is not empty and holds no run; give --run-dir an empty or new folder.")


def discard_new(run: Run) -> None:
    """Take back a run folder that this process made and whose first stage was refused: nothing half written stays."""
    store = run.store
    for name in (*store.files(""), *store.hidden_files("")):
        store.delete(name)
    if store.is_local:
        for folder, _, _ in os.walk(store.root, topdown=False):
            with contextlib.suppress(OSError):  # a folder that holds anything else stays
                Path(folder).rmdir()


@contextlib.contextmanager
def single_writer(uri: str) -> Iterator[None]:
    """Hold the run's lock. The operating system frees it when its owner dies, however that happens.

    In an object store it is a lease that runs out when its owner dies (remote_lock.py).

    Raises:
        RunIsHeld: someone else holds it; the sentence says who, where and since when.
        UserError: the folder holds something else, or can't be written.
    """
    store = Store(uri)
    if not store.is_local:
        with remote_writer(store):
            _refuse_foreign(store)
            yield
        return
    _refuse_foreign(store)  # not even a lock goes into a folder that isn't ours
    try:
        Path(store.root).mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(store.path(LOCK), timeout=0)
        lock.acquire()
    except filelock.Timeout:
        raise RunIsHeld(f"'{uri}' is being written by {_holder(store)}; wait for it or stop it first.") from None
    except OSError as error:
        raise UserError(
            f"'{uri}' can't be written ({error.strerror or error}); give a folder you may write to."
        ) from error
    try:
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %Z")}
        store.write_bytes(HOLDER, json.dumps(holder).encode())
        yield
    finally:
        store.delete(HOLDER)
        lock.release()


def _holder(store: Store) -> str:
    try:
        holder = json.loads(store.read_bytes(HOLDER))
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError):
        return "another process"
