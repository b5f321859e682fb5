"""The work that ``benchmarks.peers`` gives to each contestant: the same model, prompts, counts and hyperparameters."""

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

LEARNING_RATE, KL, CLIP, TEMPERATURE = 1e-5, 0.04, 0.2, 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """One step: so many prompts, each answered ``group`` times in at most ``new_tokens`` tokens, and one update."""

    model: str  # folder
    prompts: int
    group: int
    new_tokens: int
    threads: int
    seed: int
    peer_batch: int  # sequences of one forward pass of a contestant that pads

    def sums(self) -> list[tuple[int, int]]:
        """The sums asked for; others for another seed."""
        return [((self.seed * 31 + 7 * place) % 10, (3 * place + self.seed) % 10) for place in range(self.prompts)]

    def messages(self) -> list[list[dict[str, str]]]:
        """A chat of one question for each prompt."""
        return [[{"role": "user", "content": f"What is {a} + {b}?"}] for a, b in self.sums()]

    def prompt_ids(self, tokenizer: Any) -> list[list[int]]:
        """Token ids of each prompt, by the model's own template."""
        return [
            list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False))
            for chat in self.messages()
        ]

    def rewards(self, texts: Sequence[str], sums: Sequence[tuple[int, int]]) -> list[float]:
        """1 where the last number of an answer is the sum."""
        found = ["".join(sign if sign.isdigit() else " " for sign in text).split() for text in texts]
        return [float(bool(n) and n[-1] == str(a + b)) for n, (a, b) in zip(found, sums, strict=True)]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one contestant took for one step."""

    seconds: dict[str, float]  # by stage
    completion_tokens: int
    peak_bytes: int

    @property
    def whole(self) -> float:
        return sum(self.seconds.values())


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
