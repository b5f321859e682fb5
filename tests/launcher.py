"""Starts commands of ``grpo-rounds`` in well under a second, each in a process of its own that can be killed."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import warm

ROOT = Path(__file__).resolve().parents[1]


class Launcher:
    """Commands with a common environment. Close it at the end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = os.environ | dict(environment) | {"PYTHONPATH": str(ROOT)}
        self._channels: dict[int, socket.socket] = {}

    def start(self, *arguments: object, folder: Path, log: Path, **environment: str) -> int:
        """Start a command in a folder with more environment; its output goes into ``log`` (and log.err). Its pid."""
        with log.open("wb") as told, log.with_suffix(".err").open("wb") as complained:
            channel, pid = warm.begin(
                warm.program()[-1], list(map(str, arguments)), self._environment | environment, str(folder),
                (told.fileno(), complained.fileno()),
            )  # fmt: skip
        self._channels[pid] = channel
        return pid

    def wait(self, pid: int) -> int:
        """The exit status of a command as ``subprocess`` gives it: negative for a signal."""
        with self._channels.pop(pid) as channel:
            return warm.status(channel)

    def run(self, *arguments: object, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with tempfile.TemporaryDirectory() as scratch:
            log = Path(scratch, "log")
            status = self.wait(self.start(*arguments, folder=folder, log=log, **environment))
            told, complained = log.read_text(), log.with_suffix(".err").read_text()
        return subprocess.CompletedProcess(list(map(str, arguments)), status, told, complained)

    def close(self) -> None:
        """Commands that still run die."""
        for channel in self._channels.values():
            channel.close()
