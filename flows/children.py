"""Prefect's own temporary server is a child process that would outlive a kill of this one; this ends it."""

import atexit
import subprocess

from prefect.server.api.server import SubprocessASGIServer

# Reads until the pipe's other end closes, which the system does when this process dies in whatever way. A line means
# that it ended in order and has seen to the server itself.
_WATCH = 'read -r line && exit; kill -TERM "$1" 2>/dev/null; sleep 5; kill -KILL "$1" 2>/dev/null'

_watchers: dict[int, subprocess.Popen[str]] = {}  # by the server's process id; a collected Popen would close its pipe


def end_server_with_us() -> None:
    """Tie the life of Prefect's temporary server to this process. Nothing happens where a real server is used."""
    for server in SubprocessASGIServer._instances.values():
        process = server.server_process
        if process is not None and process.poll() is None and process.pid not in _watchers:
            _watchers[process.pid] = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "sh", str(process.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C at the terminal is for us, not for it
            )


@atexit.register  # before Prefect registers its own, so that it runs after the server was stopped
def _dismiss() -> None:
    for watcher in _watchers.values():
        watcher.communicate("in order\n")
