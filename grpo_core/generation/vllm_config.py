"""Settings of the engines that run outside this process: vLLM's own processes, and a vLLM server somewhere."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

# They change neither a batch nor a kernel, so artifacts don't depend on them.
_DECIDES_NOTHING = {"python", "engines", "keep_alive", "silence_seconds", "start_seconds", "restarts"}


class VllmConfig(BaseModel):
    """Engine processes on this machine, in an environment of their own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: str | None = Field(
        None, min_length=1, description="Interpreter that has vLLM; null: the one of .venv-vllm, which make vllm makes."
    )
    engines: int | None = Field(
        None, ge=1, description="Processes; null: one for each visible GPU (or set of tensor_parallel), one on a CPU."
    )
    tensor_parallel: int = Field(1, ge=1, description="GPUs that share one copy of the model.")
    memory_share: float = Field(
        0.9, gt=0, le=1, description="Of a GPU's memory, for weights and cache; kv_cache_gib goes before it."
    )
    kv_cache_gib: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Memory for keys and values; null: what memory_share leaves on a GPU, 1 on a CPU.",
    )
    max_model_len: int | None = Field(
        None, ge=2, description="Tokens of the longest prompt with its answer; null: the model's own context."
    )
    max_sequences: int = Field(256, ge=1, description="Completions decoded at a time; the rest of a shard waits.")
    eager: bool | None = Field(
        None, description="True: without compiled graphs, which starts faster and runs slower; null: on a CPU only."
    )
    keep_alive: bool = Field(
        False, description="Engines stay between stages and load the next policy's weights; memory stays theirs."
    )
    silence_seconds: float = Field(
        300, gt=0, allow_inf_nan=False, description="An engine that is silent for so long while it works is restarted."
    )
    start_seconds: float = Field(
        1800, gt=0, allow_inf_nan=False, description="An engine that has not loaded the model after so long, too."
    )
    restarts: int = Field(2, ge=0, description="Restarts of an engine, and tries again of a shard, in a row.")

    def deciding(self) -> dict[str, Any]:
        """The settings that may decide what is generated."""
        return self.model_dump(mode="json", exclude=_DECIDES_NOTHING)


class ServerConfig(BaseModel):
    """An OpenAI-compatible vLLM server; its key, if it wants one, stands in GRPO_ROUNDS_SERVER_KEY."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field("http://127.0.0.1:8000", pattern=r"^https?://[^@]+$", description="Its address, without /v1.")
    model: str | None = Field(None, min_length=1, description="A name that it serves; null: the first.")
    timeout_seconds: float = Field(
        1800, gt=0, allow_inf_nan=False, description="Longest wait for one completion; a longer one is an error."
    )
    connections: int = Field(64, ge=1, description="Completions asked for at a time.")


def vllm_seed(seed: int) -> int:
    """Of 64 unsigned bits the upper 63: vLLM keeps a signed 64-bit seed, and takes -1 for none at all."""
    return seed >> 1
