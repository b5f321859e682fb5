"""The work that ``benchmarks.peers`` and ``benchmarks.learning`` give to each contestant: sums of one-digit numbers."""

import json
import random
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

Sum = tuple[int, int]

KL, CLIP, TEMPERATURE = 0.04, 0.2, 1.0
HELD_OUT = 36


@dataclass(frozen=True, slots=True)
class Work:
    """A round: so many prompts, each answered ``group`` times in at most ``new_tokens`` tokens, then an update."""

    model: str  # folder
    prompts: int
    group: int
    new_tokens: int
    threads: int
    seed: int
    peer_batch: int  # sequences of one forward pass of a contestant that pads
    minibatches: int = 1  # optimiser steps of a round
    learning_rate: float = 1e-5
    rounds: int = 1  # at most
    updates: bool = True  # False: rounds end with their rewards

    def sums(self, round_number: int) -> list[Sum]:
        """What a round asks; no sum that is held out."""
        pool = self._shuffled()[HELD_OUT:]
        order = [place for n in range(round_number + 1) for place in self._epoch(n, len(pool))]
        start = (round_number - 1) * self.prompts
        return [pool[place] for place in order[start : start + self.prompts]]

    def held_out(self) -> list[Sum]:
        """Sums that no round asks."""
        return self._shuffled()[:HELD_OUT]

    def rewards(self, texts: Sequence[str], sums: Sequence[Sum]) -> list[float]:
        """1 where the last number of an answer is the sum, else 0."""
        found = ["".join(sign if sign.isdigit() else " " for sign in text).split() for text in texts]
        return [float(bool(n) and n[-1] == str(a + b)) for n, (a, b) in zip(found, sums, strict=True)]

    def _shuffled(self) -> list[Sum]:
        pool = [(a, b) for a in range(10) for b in range(10)]
        random.Random(self.seed).shuffle(pool)
        return pool

    def _epoch(self, number: int, size: int) -> list[int]:
        order = list(range(size))
        random.Random(f"{self.seed}/{number}").shuffle(order)
        return order


@dataclass(frozen=True, slots=True)
class Measured:
    """What one contestant took for one round."""

    seconds: dict[str, float]  # by stage
    completion_tokens: int
    peak_bytes: int

    @property
    def whole(self) -> float:
        return sum(self.seconds.values())


def chat(pair: Sum) -> list[dict[str, str]]:
    """The question, as a chat."""
    return [{"role": "user", "content": f"What is {pair[0]} + {pair[1]}?"}]


def prompt_ids(tokenizer: Any, sums: Sequence[Sum]) -> list[list[int]]:
    """Token ids of each question by the model's own template."""
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    return [list(tokenizer.apply_chat_template(chat(pair), **options)) for pair in sums]


def told_work() -> Work:
    """The work named on the command line of a contestant; also sets torch's threads."""
    work = Work(**json.loads(sys.argv[1]))
    torch.set_num_threads(work.threads)
    torch.manual_seed(work.seed)
    return work


def tell(seconds: Mapping[str, float], completion_tokens: int) -> None:
    """A contestant's last words: what it took, as one line of JSON."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(asdict(Measured(dict(seconds), completion_tokens, peak))), flush=True)


def save_model(folder: Path) -> None:
    """SmolLM2-135M-Instruct in float32, as every contestant loads it."""
    from grpo_core.models import ModelConfig, load_source_model, save_policy

    model, tokenizer = load_source_model(ModelConfig(), seed=0)
    save_policy(model, tokenizer, folder)
