"""What an engine is: token ids and seeds in; ids, logprobs and the reason for the end out."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.errors import UserError
from grpo_core.generation.vllm_config import ServerConfig, VllmConfig
from grpo_core.schemas import Progress, no_progress, shifted
from grpo_core.seeding import hash64

CACHE_TOKENS = 2**18


class GenerationConfig(BaseModel):
    """How rollouts are sampled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Literal["transformers", "vllm", "server"] = Field(
        "transformers",
        description="What generates: transformers in this process, vllm in processes of its own, or a vLLM server.",
    )
    group_size: int = Field(8, ge=2, description="G: completions of each prompt; a group of one has no advantage.")
    temperature: float = Field(1.0, gt=0, description="T of sampling; the same T is inside the trainer's logprobs.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling; 1 leaves the distribution whole.")
    top_k: int = Field(0, ge=0, description="Only the k likeliest tokens; 0 leaves the distribution whole.")
    max_new_tokens: int = Field(2048, ge=1, description="A completion is cut off after so many tokens.")
    shard_groups: int = Field(8, ge=1, description="Groups in a shard: one file, what a kill can cost.")
    cache_tokens: int = Field(
        CACHE_TOKENS,
        ge=1,
        description="transformers: tokens, rows times prompt and max_new_tokens, that one batch may hold in its cache; "
        "a shard that needs more is generated in several batches.",
    )
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)

    def deciding(self, exclude: Collection[str] = ()) -> dict[str, Any]:
        """The settings that may decide what is generated, as plain values."""
        unread = {"cache_tokens"} if self.engine != "transformers" or self.cache_tokens == CACHE_TOKENS else set()
        told = self.model_dump(mode="json", exclude={"vllm", "server", *unread, *exclude})
        return told | ({"vllm": self.vllm.deciding()} if self.engine == "vllm" else {})


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and a 64-bit seed for each completion wanted of it."""

    prompt_id: str
    prompt_ids: Sequence[int]
    seeds: Sequence[int]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Temperature 0 is greedy."""

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion.

    ``logprobs`` has one entry a token, under the distribution that the token was drawn from (temperature, top-k and
    top-p applied; greedy: temperature 1). ``token_ids`` ends with an EOS id exactly when ``finish_reason`` is "stop".
    """

    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: Literal["stop", "length"]


class Engine(Protocol):
    """Generates completions with fixed weights."""

    name: str
    version: str
    precision: str  # of the weights: "float32", "bfloat16", …

    def probe(self, ids: Sequence[int]) -> list[float]:
        """Logprob at temperature 1, in nats, of each id but the first after those before it."""
        ...

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, progress: Progress = no_progress
    ) -> list[list[Completion]]:
        """One group a request, in order; one completion a seed, in order. Equal calls give equal results.

        ``progress`` counts finished completions. Raises UserError when a prompt and its answer can't fit the model.
        """
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...


@runtime_checkable
class ManyBatches(Protocol):
    """An engine that can work at several batches at a time."""

    def generate_batches(
        self, batches: Sequence[Sequence[Request]], sampling: SamplingParams, progress: Progress = no_progress
    ) -> Iterator[list[list[Completion]]]:
        """See the function ``generate_batches``."""
        ...


def generate_batches(
    engine: Engine, batches: Sequence[Sequence[Request]], sampling: SamplingParams, progress: Progress = no_progress
) -> Iterator[list[list[Completion]]]:
    """What ``Engine.generate`` gives for each batch, in order, side by side where the engine can.

    ``progress`` counts the completions of all batches.
    """
    if isinstance(engine, ManyBatches):
        yield from engine.generate_batches(batches, sampling, progress)
        return
    total, done = sum(len(request.seeds) for batch in batches for request in batch), 0
    for batch in batches:
        yield engine.generate(batch, sampling, shifted(progress, done, total))
        done += sum(len(request.seeds) for request in batch)


def seeds_for(run_seed: int, round_number: int, prompt_id: str, group_size: int) -> list[int]:
    """The seeds of a group, one for each sample index."""
    return [hash64(run_seed, round_number, prompt_id, index) for index in range(group_size)]


def eos_ids(*holders: Any) -> frozenset[int]:
    """Every id that ends a completion, of configs and a tokenizer: one, several or none in each."""
    found: set[int] = set()
    for holder in holders:
        value = getattr(holder, "eos_token_id", None)
        found.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
    return frozenset(found)


NOT_FINITE = (
    "The policy gives logits that are not finite; lower update.learning_rate and go back to a round before, or set "
    "model.dtype to float32."
)


def check_length(requests: Sequence[Request], sampling: SamplingParams, limit: int | None) -> None:
    """Raises UserError when a prompt and its answer don't fit into ``limit`` tokens; None: there is no limit."""
    longest = max((len(request.prompt_ids) for request in requests), default=0)
    if limit is not None and longest + sampling.max_new_tokens > limit:
        raise UserError(
            f"A prompt of {longest} tokens and generation.max_new_tokens {sampling.max_new_tokens} exceed the "
            f"model's context of {limit}; lower generation.max_new_tokens or data.max_prompt_tokens."
        )
