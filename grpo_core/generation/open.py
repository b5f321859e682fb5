"""From a policy folder to an engine that is ready to generate; the one place that knows every engine by name."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_core.generation.engine import Engine, GenerationConfig
from grpo_core.models import ModelConfig


@contextmanager
def open_engine(policy: Path, model: ModelConfig, config: GenerationConfig) -> Iterator[Engine]:
    """The configured engine over the policy saved in a folder; its memory is free again afterwards.

    Raises:
        NotHere: the engine needs what this machine lacks, or no server answers.
        UserError: the server can't take the policy.
        UserError: a server can't be reached, or can't take the policy.
    """
    # A new engine is one more branch here. Imports stay inside: an engine's libraries may live in another environment.
    if config.engine == "vllm":
        from grpo_core.generation.kept import open_fleet

        with open_fleet(policy, model, config) as fleet:
            yield fleet
        return
    if config.engine == "server":
        from grpo_core.generation.server_engine import open_server

        with open_server(policy, model, config.server) as server:
            yield server
        return
    from grpo_core.generation.transformers_engine import TransformersEngine
    from grpo_core.models import compute_dtype, load_policy, load_tokenizer, resolve_device

    device = resolve_device(model)
    weights = load_policy(policy, device, compute_dtype(model, device))
    engine = TransformersEngine(weights, load_tokenizer(policy), config.cache_tokens)
    try:
        yield engine
    finally:
        engine.close()
        del engine, weights
        gc.collect()
