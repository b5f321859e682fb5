"""Fleets of engines: one for a stage, or one that stays between stages and loads each policy's weights in turn."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_core.errors import UserError
from grpo_core.fingerprint import digest_json
from grpo_core.generation.engine import GenerationConfig
from grpo_core.generation.fleet import EngineFleet
from grpo_core.models import ModelConfig

_kept: dict[tuple[int, str], EngineFleet] = {}  # by process, since a fork owns none of its parent's


@contextmanager
def open_fleet(policy: Path, model: ModelConfig, config: GenerationConfig) -> Iterator[EngineFleet]:
    """Engines on a policy, which are gone afterwards, or at rest where ``generation.vllm.keep_alive`` says so.

    Raises:
        NotHere: vLLM's environment or a GPU is missing.
    """
    if not config.vllm.keep_alive:
        fleet = EngineFleet(policy, model, config)
        try:
            yield fleet
        finally:
            fleet.close()
        return
    fleet = _kept_fleet(policy, model, config)
    try:
        yield fleet
        fleet.rest()
    except BaseException:
        end_kept_fleets()
        raise


def end_kept_fleets() -> None:
    """End what ``keep_alive`` has kept in this process; runs by itself when the interpreter ends."""
    for key in [key for key in _kept if key[0] == os.getpid()]:
        _kept.pop(key).close()


def _kept_fleet(policy: Path, model: ModelConfig, config: GenerationConfig) -> EngineFleet:
    settings = [config.vllm.model_dump(mode="json"), model.model_dump(mode="json")]
    key = (os.getpid(), digest_json([*settings, (policy / "config.json").read_text(encoding="utf-8")]))
    if key in _kept:
        try:
            _kept[key].reload(policy)
            return _kept[key]
        except UserError:  # the canary: what a fresh engine loads is judged anew
            pass
    end_kept_fleets()
    _kept[key] = EngineFleet(policy, model, config)
    return _kept[key]


atexit.register(end_kept_fleets)
