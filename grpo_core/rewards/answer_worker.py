"""The child that runs full checks: ``python -m grpo_core.rewards.answer_worker PARENT_PID CHECK``.

One JSON object a line. It says ``{"ready": true}`` once its imports are done, then answers each ``{"answer", "gold",
"seconds"}`` with ``{"verdict", "detail", "value"}``. It dies with its parent: idle, by the end of its input or a
changed parent id (looked at every second); busy, by an alarm with the default action, which the kernel delivers even
while a big-integer power holds the interpreter. PDEATHSIG would not do: it fires when the *thread* that started the
child ends, and flows run their tasks in short-lived threads.
"""

import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from grpo_core.rewards.verdict import Verdict

Check = Callable[[str, str], tuple[Verdict, str, float | None]]
"""An answer and what it is checked against in; the verdict, its reason, and a value where there are degrees out."""

_GRACE_SECONDS = 1.0  # beyond the limit that the parent keeps itself
_READ_BYTES = 65_536
_ADDRESS_BYTES = 3 << 30  # what even a single jump between two looks of the parent cannot exceed


def _math() -> Check:
    import math_verify  # noqa: F401
    import sympy.parsing.sympy_parser

    from grpo_core.rewards.math import build_only, full_check

    sympy.parsing.sympy_parser.eval_expr = build_only
    return lambda answer, gold: (*full_check(answer, gold), None)


def _reasoning_gym() -> Check:
    from grpo_core.rewards.gym_check import gym_check, nothing_is_run

    nothing_is_run()
    return gym_check


CHECKS: dict[str, Callable[[], Check]] = {"math": _math, "reasoning-gym": _reasoning_gym}
"""By the name that a pool gives; each loads what it needs."""


def main() -> None:
    """Serves checks until the parent is gone."""
    parent = int(sys.argv[1])
    answers = os.dup(1)
    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 1)  # a library that prints must not end up inside the protocol
    os.dup2(silent, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    least = _ADDRESS_BYTES if most == resource.RLIM_INFINITY else min(_ADDRESS_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (least, most))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _when_memory_ends_die_first()
    try:
        check = CHECKS[sys.argv[2]]()
    except Exception as error:
        _send(answers, {"failed": f"{type(error).__name__}: {error}"})
        raise SystemExit(1) from error
    _send(answers, {"ready": True})
    waiting = b""
    while True:
        while b"\n" not in waiting:
            readable, _, _ = select.select([0], [], [], 1.0)
            if os.getppid() != parent:
                return
            if readable:
                received = os.read(0, _READ_BYTES)
                if not received:
                    return
                waiting += received
        line, _, waiting = waiting.partition(b"\n")
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + _GRACE_SECONDS)
        verdict, detail, value = _checked(check, request)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _send(answers, {"verdict": verdict.value, "detail": detail, "value": value})


def _checked(check: Check, request: dict[str, Any]) -> tuple[Verdict, str, float | None]:
    """The finding; a check that fails in itself says so, and the worker lives on."""
    try:
        return check(request["answer"], request["gold"])
    except Exception as error:
        return Verdict.ERROR, f"{type(error).__name__}: {error}"[:200], None


def _send(channel: int, message: dict[str, Any]) -> None:
    os.write(channel, json.dumps(message).encode() + b"\n")


def _when_memory_ends_die_first() -> None:
    """Makes the kernel choose this process, not the trainer, where the machine runs out of memory (Linux)."""
    if os.path.exists("/proc/self/oom_score_adj"):
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")


if __name__ == "__main__":
    main()
