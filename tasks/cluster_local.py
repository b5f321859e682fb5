"""A Ray cluster started in place: all of its processes end with this one, however that happens."""

import atexit
import subprocess
from typing import Any

# Reads until the pipe's other end closes, which the system does when this process dies in whatever way. A line means
# that it ended in order, and Ray with it. By itself Ray leaves agents behind when its owner is killed.
_WATCH = 'read -r line && exit; sleep 1; for process in "$@"; do kill -KILL "$process" 2>/dev/null; done'

_watchers: list[subprocess.Popen[str]] = []  # a collected Popen would close its pipe


def start_in_place(ray: Any, **arguments: Any) -> None:
    """``ray.init`` of a cluster with this machine's resources, without its dashboard."""
    import psutil

    us = psutil.Process()
    before = {child.pid for child in us.children(recursive=True)}
    ray.init(address="local", include_dashboard=False, **arguments)
    started = [str(child.pid) for child in us.children(recursive=True) if child.pid not in before]
    _watchers.append(
        subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", *started],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C at the terminal is for us, not for it
        )
    )


@atexit.register  # before Ray registers its own, so that it runs after Ray has ended
def _dismiss() -> None:
    for watcher in _watchers:
        watcher.communicate("in order\n")
