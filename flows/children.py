"""Prefect's temporary server is a child process that would outlive a kill of this one; this ends it."""

import atexit
import subprocess
import sys

# Reads until the pipe's other end closes, which the system does when this process dies in whatever way. A line means
# that it ended in order and has seen to the server itself. A server that is still making its database's tables ends
# after that.
_WATCH = """
read -r line && exit
kill -TERM "$1" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  kill -0 "$1" 2>/dev/null || exit
  sleep 1
done
kill -KILL "$1" 2>/dev/null
"""

_watchers: dict[int, subprocess.Popen[str]] = {}  # by the server's process id; a collected Popen would close its pipe


def end_server_with_us() -> None:
    """Tie the life of a server that Prefect itself has started to this process."""
    module = sys.modules.get("prefect.server.api.server")  # heavy, and there already if it has started one
    if module is None:
        return
    for server in module.SubprocessASGIServer._instances.values():
        process = server.server_process
        if process is not None and process.poll() is None:
            end_with_us(process.pid)


def end_with_us(pid: int) -> None:
    """Tie the life of a server to this process."""
    if pid in _watchers:
        return
    _watchers[pid] = subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, "sh", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C at the terminal is for us, not for it
    )


@atexit.register  # before a server's own end is registered, so that it runs after that
def _dismiss() -> None:
    for watcher in _watchers.values():
        watcher.communicate("in order\n")
