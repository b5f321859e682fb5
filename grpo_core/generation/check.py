"""Whether the configured engine can run here, found out before a run exists."""

from grpo_core.config import RunConfig
from grpo_core.errors import NotHere, UserError
from grpo_core.generation.vllm_environment import installed, interpreter
from grpo_core.models import resolve_device


def check_engine(config: RunConfig) -> None:
    """Look for what the engine needs.

    Raises:
        NotHere: its environment is missing, does not work or is built for another device; no server answers.
        UserError: the longest prompt and answer don't fit, or the model is none for vLLM.
    """
    if config.generation.engine == "vllm":
        _check_vllm(config)
    elif config.generation.engine == "server":
        _check_server(config)


def _check_server(config: RunConfig) -> None:
    from grpo_core.generation.server_engine import Server

    server = Server(config.generation.server)
    server.close()
    needed = config.data.max_prompt_tokens + config.generation.max_new_tokens
    if server.context is not None and server.context < needed:
        raise UserError(
            f"The server at {server.url} takes {server.context} tokens, and data.max_prompt_tokens and "
            f"generation.max_new_tokens ask for {needed} together; lower one, or raise its --max-model-len."
        )


def _check_vllm(config: RunConfig) -> None:
    settings, needed = config.generation.vllm, config.data.max_prompt_tokens + config.generation.max_new_tokens
    if settings.max_model_len is not None and settings.max_model_len < needed:
        raise UserError(
            f"generation.vllm.max_model_len {settings.max_model_len} is less than data.max_prompt_tokens and "
            f"generation.max_new_tokens together ({needed}); raise it, or lower one of these."
        )
    if config.model.name == "tiny":
        raise UserError(
            "model.name tiny has attention heads of 16 numbers, which vLLM's kernels don't take; set generation.engine "
            "to transformers, or give another model."
        )
    device = resolve_device(config.model).type
    found, for_cpus = installed(interpreter(settings))
    if for_cpus != (device == "cpu"):
        raise NotHere(
            f"model.device is {device}, and the environment that generates has {found}; make it again with: "
            f"make vllm{'-cpu' if device == 'cpu' else ''}"
        )
