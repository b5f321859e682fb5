"""Rollouts and updates of a given shape on a given model, timed: what ``limits`` and ``scale`` have in common."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grpo_core.estimate.shapes import Shape
from grpo_core.generation.engine import Request, SamplingParams
from grpo_core.generation.transformers_engine import TransformersEngine
from grpo_core.policy.batching import PackedGroup, TrainingRollout
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.optimizer import new_trainer_state
from grpo_core.policy.update import update_policy


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts of so many tokens, each with ``group`` completions of so many tokens."""

    prompts: int
    group: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def completions(self) -> int:
        return self.prompts * self.group

    def rollouts(self, vocabulary: int) -> list[TrainingRollout]:
        """Random ids with advantages of either sign."""
        random = np.random.default_rng(0)
        found = []
        for prompt in range(self.prompts):
            prompt_ids = random.integers(3, vocabulary, self.prompt_tokens).tolist()
            for place in range(self.group):
                ids = random.integers(3, vocabulary, self.completion_tokens).tolist()
                logprobs = np.full(len(ids), -np.log(vocabulary), dtype=np.float32)
                found.append(
                    TrainingRollout(
                        f"p{prompt}",
                        prompt_ids,
                        ids,
                        logprobs,
                        1.0 if place % 2 else -1.0,
                        in_loss=True,
                        truncated=False,
                        reward=float(place % 2),
                    )
                )
        return found

    def requests(self, vocabulary: int) -> list[Request]:
        """A group for each prompt."""
        random = np.random.default_rng(0)
        return [
            Request(f"p{n}", random.integers(3, vocabulary, self.prompt_tokens).tolist(), range(self.group))
            for n in range(self.prompts)
        ]


def forward_operations(shape: Shape, lengths: Sequence[tuple[int, Sequence[int]]]) -> float:
    """Floating-point operations without which there is no forward pass: every prompt once, no padding, no hidden pair.

    Args:
        lengths: of each prompt, and of its completions, in tokens.
    """
    places = pairs = targets = 0
    for prompt, completions in lengths:
        row = PackedGroup(range(prompt), [range(length) for length in completions])
        places += row.tokens
        pairs += row.seen_pairs
        targets += sum(completions)
    return 2.0 * shape.body * places + 4.0 * shape.layers * shape.attention * pairs + 2.0 * shape.head * targets


def update_operations(shape: Shape, lengths: Sequence[tuple[int, Sequence[int]]]) -> float:
    """Of an update with one epoch and a reference: its forward pass, the policy's, and a backward pass of two more."""
    return 4.0 * forward_operations(shape, lengths)


def time_update(model: Any, reference: Any, rollouts: Sequence[TrainingRollout], repetitions: int) -> float:
    """Median seconds of a round's update, after one that is not counted; the model changes a little each time."""
    config = UpdateConfig(learning_rate=1e-9, direction_groups=0)
    state = new_trainer_state(model, 0)

    def once() -> None:
        update_policy(model, lambda: reference, rollouts, state, config, temperature=1.0, seed=0, round_number=1)

    return _median(once, repetitions)


def time_rollouts(model: Any, tokenizer: Any, batch: Batch, repetitions: int) -> float:
    """Median seconds of a batch's rollouts, none of which ends early."""
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token = None
    engine = TransformersEngine(model, tokenizer)
    requests = batch.requests(model.config.vocab_size)
    sampling = SamplingParams(1.0, 1.0, 0, batch.completion_tokens)
    return _median(lambda: engine.generate(requests, sampling), repetitions)


def matmul_rate(repetitions: int = 15) -> float:
    """Floating-point operations a second of a product of two large float32 matrices, at best."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    taken = []
    for _ in range(repetitions):
        began = time.perf_counter()
        a @ b
        taken.append(time.perf_counter() - began)
    return 2 * 2048**3 / min(taken)


def _median(call: Callable[[], Any], repetitions: int) -> float:
    call()
    taken = []
    for _ in range(repetitions):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
