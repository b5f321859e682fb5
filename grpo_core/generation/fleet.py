"""vLLM engines in processes of their own, one for each GPU or tensor-parallel set, that share the work between them.

A process is the only sure way to have its GPU memory back, and vLLM can't live in the trainer's environment anyway. An
engine that dies or hangs is started again and its work done again: what decides a completion is in the order, so it
comes out the same.
"""

import json
import os
import selectors
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from grpo_core.errors import NotHere, UserError
from grpo_core.generation.engine import Completion, GenerationConfig, Request, SamplingParams
from grpo_core.generation.engine_process import EngineProcess, Order
from grpo_core.generation.shards import RolloutJob
from grpo_core.generation.vllm_environment import interpreter, surroundings
from grpo_core.models import ModelConfig, compute_dtype, resolve_device
from grpo_core.schemas import Progress, no_progress

_POLL_SECONDS = 0.2
_LAST_WORDS_SECONDS = 2.0
_AHEAD = 2  # orders that an engine has at a time: the next is there while the caller works on what came before


class EngineFleet:
    """An ``Engine`` and a ``ShardMaker`` over engine processes, which load the policy while other work may go on.

    Raises:
        NotHere: vLLM's environment or a GPU is missing.
    """

    name = "vllm"

    def __init__(self, policy: Path, model: ModelConfig, config: GenerationConfig) -> None:
        self._settings = config.vllm
        self._python = interpreter(config.vllm)
        device = resolve_device(model)
        self.precision = str(compute_dtype(model, device)).removeprefix("torch.")
        self.version = ""  # known when the first engine has started
        self._devices = share_out(device, config)
        self._threads = model.threads
        self._policy = policy
        self._folder = tempfile.TemporaryDirectory(prefix="grpo-rounds-engines-")
        self._engines: dict[int, EngineProcess] = {}
        self._failures = dict.fromkeys(range(len(self._devices)), 0)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what the trainer keeps for later is the engines' now
        self._staff()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The ids of the engines that have work."""
        return tuple(engine.process.pid for engine in self._engines.values() if engine.orders)

    def probe(self, ids: Sequence[int]) -> list[float]:
        """See ``Engine.probe``; each engine has also compared itself with the policy's folder when it loaded it."""
        (found,) = self._run([self._order("probe", {"ids": list(ids)})], no_progress)
        return list(found)

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, progress: Progress = no_progress
    ) -> list[list[Completion]]:
        """All requests in one batch of one engine; see ``Engine.generate``."""
        (groups,) = self.generate_batches([requests], sampling, progress)
        return groups

    def generate_batches(
        self, batches: Sequence[Sequence[Request]], sampling: SamplingParams, progress: Progress = no_progress
    ) -> Iterator[list[list[Completion]]]:
        """What ``generate`` gives for each batch, in order; they are shared out among the engines."""
        orders = [
            self._order(
                "generate",
                {"requests": [asdict(request) for request in requests], "sampling": asdict(sampling)},
                sum(len(request.seeds) for request in requests),
            )
            for requests in batches
        ]
        for groups in self._run(orders, progress):
            yield [[Completion(**completion) for completion in group] for group in groups]

    def make(self, job: RolloutJob, names: Sequence[str], progress: Progress = no_progress) -> Iterator[str]:
        """See ``ShardMaker.make``: the engines write the shards themselves."""
        parts = [job.model_copy(update={"shards": {name: job.shards[name]}}) for name in names]
        orders = [
            Order("shard", part.model_dump_json(), self._settings.silence_seconds, job.completions(name))
            for part, name in zip(parts, names, strict=True)
        ]
        for name, _ in zip(names, self._run(orders, progress), strict=True):
            yield name

    def reload(self, policy: Path) -> None:
        """Let every engine take another policy of the same model. Raises UserError when one's canary is wrong then."""
        self._policy = policy
        self._each("reload", {"policy": str(policy)})

    def rest(self) -> None:
        """Let every engine give back its GPU memory until the next ``reload``."""
        self._each("rest", {})

    def close(self) -> None:
        """End the engines, and wait until they are gone."""
        for engine in self._engines.values():
            engine.end()
        self._engines.clear()
        self._folder.cleanup()

    def _order(self, do: str, told: Any, completions: int = 0) -> Order:
        return Order(do, json.dumps(told), self._settings.silence_seconds, completions)

    def _each(self, do: str, told: Any) -> None:
        patience = self._settings.start_seconds
        orders = [Order(do, json.dumps(told), patience, engine=number) for number in range(len(self._devices))]
        for _ in self._run(orders, no_progress):
            pass

    def _staff(self) -> None:
        """Start every engine that is not there."""
        for number, devices in enumerate(self._devices):
            if number not in self._engines:
                eager = self._settings.eager is not False and devices == ""
                self._engines[number] = EngineProcess(
                    number,
                    self._python,
                    Path(self._folder.name),
                    {
                        "policy": str(self._policy.absolute()),
                        "dtype": self.precision,
                        "settings": self._settings.model_dump(mode="json"),
                    },
                    surroundings(devices, self._threads, compiled=not eager),
                )

    def _run(self, orders: Sequence[Order], progress: Progress) -> Iterator[Any]:
        """The answers, in order. ``progress`` hears of the completions of all orders."""
        waiting, answers, heard = deque(orders), dict[Order, Any](), -1
        total = sum(order.completions for order in orders)
        try:
            for order in orders:
                for engine in self._engines.values():
                    if engine.ready:
                        engine.since = time.monotonic()  # the caller was away: nobody listened
                while order not in answers:
                    self._staff()
                    self._hand_out(waiting)
                    self._listen(waiting, answers)
                    self._enforce(waiting)
                    count = sum(each.heard for each in orders)
                    if count != heard and total:
                        heard = count
                        progress(count, total)
                yield answers.pop(order)
        finally:
            for engine in list(self._engines.values()):
                if any(order in orders for order in engine.orders):  # a late answer must not meet the next question
                    self._end(engine)

    def _hand_out(self, waiting: deque[Order]) -> None:
        for order in list(waiting):
            able = [
                engine
                for engine in self._engines.values()
                if engine.ready and len(engine.orders) < _AHEAD and order.engine in (None, engine.number)
            ]
            if able:
                waiting.remove(order)
                min(able, key=lambda engine: (len(engine.orders), engine.number)).give(order)

    def _listen(self, waiting: deque[Order], answers: dict[Order, Any]) -> None:
        """Wait for news of any engine, a poll interval at most, and take it in."""
        with selectors.DefaultSelector() as selector:
            for engine in self._engines.values():
                selector.register(engine.output, selectors.EVENT_READ, engine)
            events = selector.select(_POLL_SECONDS)
        for key, _ in events:
            engine = key.data
            messages = engine.receive()
            if messages is None:
                self._lost(engine, f"ended (status {engine.process.wait()})", waiting)
                continue
            for message in messages:
                self._take_in(engine, message, answers)

    def _take_in(self, engine: EngineProcess, message: dict[str, Any], answers: dict[Order, Any]) -> None:
        if "ready" in message:
            engine.ready = True
            self.version = message["ready"]["version"]
        elif "beat" in message:
            for order in list(engine.orders)[:1]:  # none while it loads
                order.heard = message["beat"]
        elif "refused" in message:
            raise UserError(message["refused"])
        else:
            order = engine.orders.popleft()
            order.heard = order.completions
            answers[order] = message["done"]
            self._failures[engine.number] = 0

    def _enforce(self, waiting: deque[Order]) -> None:
        """Give up engines that have been silent for too long."""
        for engine in list(self._engines.values()):
            silent = time.monotonic() - engine.since
            status = engine.process.poll()
            if status is not None and silent > _LAST_WORDS_SECONDS:  # what it started may hold its output open
                self._lost(engine, f"ended (status {status})", waiting)
            elif not engine.ready and silent > self._settings.start_seconds:
                self._lost(engine, f"had not loaded the model after {self._settings.start_seconds:g} s", waiting)
            elif engine.ready and engine.orders and silent > engine.orders[0].patience:
                self._lost(engine, f"was silent for {engine.orders[0].patience:g} s", waiting)

    def _lost(self, engine: EngineProcess, what: str, waiting: deque[Order]) -> None:
        """Put its work back and end it, so that it is started again. Raises UserError when that helps no more."""
        self._failures[engine.number] += 1
        failures = self._failures[engine.number]
        if engine.orders:
            engine.orders[0].failures += 1
            failures = max(failures, engine.orders[0].failures)
        words = engine.last_words()
        for order in reversed(engine.orders):
            order.heard = 0
            waiting.appendleft(order)
        self._end(engine)
        if failures > self._settings.restarts:
            raise UserError(
                f"vLLM's engine {what}, {failures} times in a row; finished work is kept, and generation.vllm.restarts "
                f"says how often it is tried again. The end of its log:\n{words}"
            )

    def _end(self, engine: EngineProcess) -> None:
        del self._engines[engine.number]
        engine.end()


def share_out(device: torch.device, config: GenerationConfig) -> list[str]:
    """For each engine the GPUs that it may see; "" for one on a CPU."""
    settings = config.vllm
    if device.type == "cpu":
        return [""] * (settings.engines or 1)
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = told.split(",") if told else [str(number) for number in range(torch.cuda.device_count())]
    size = settings.tensor_parallel
    engines = settings.engines or len(visible) // size
    if not 0 < engines * size <= len(visible):
        raise NotHere(
            f"generation.vllm asks for {max(engines, 1)} x {size} GPUs and {len(visible)} can be seen; lower "
            "generation.vllm.engines or tensor_parallel."
        )
    return [",".join(visible[number * size : (number + 1) * size]) for number in range(engines)]
