"""What an engine is: token ids and seeds in; ids, logprobs and the reason for the end out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.schemas import Progress, no_progress
from grpo_core.seeding import hash64

CACHE_TOKENS = 2**18


class GenerationConfig(BaseModel):
    """How rollouts are sampled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Literal["transformers"] = Field("transformers", description="What generates.")
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


def seeds_for(run_seed: int, round_number: int, prompt_id: str, group_size: int) -> list[int]:
    """The seeds of a group, one for each sample index."""
    return [hash64(run_seed, round_number, prompt_id, index) for index in range(group_size)]
