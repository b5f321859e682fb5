"""A contestant: TRL's GRPOTrainer. Runs where TRL is installed (``make parity`` makes that)."""

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.peers.work import CLIP, KL, TEMPERATURE, Work, chat, tell, told_work


def build_trainer(work: Work, scratch: Path, callbacks: list[TrainerCallback]) -> Any:
    """A trainer of ``work.rounds`` rounds; what it generated is counted in its ``tokens``."""
    tokenizer = AutoTokenizer.from_pretrained(work.model, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32, local_files_only=True)
    asked = [pair for number in range(1, work.rounds + 1) for pair in work.sums(number)]
    rows = [{"prompt": chat(pair), "a": pair[0], "b": pair[1]} for pair in asked]

    def reward(completions: list[Any], completion_ids: list[list[int]], a: list[int], b: list[int], **_: Any) -> Any:
        trainer.tokens += sum(map(len, completion_ids))
        return work.rewards([one[0]["content"] for one in completions], list(zip(a, b, strict=True)))

    sequences = work.prompts * work.group
    config = GRPOConfig(
        output_dir=str(scratch),
        use_cpu=True,
        bf16=False,
        learning_rate=work.learning_rate,
        lr_scheduler_type="constant",
        beta=KL,
        epsilon=CLIP,
        temperature=TEMPERATURE,
        num_generations=work.group,
        max_completion_length=work.new_tokens,
        generation_batch_size=sequences,
        per_device_train_batch_size=work.peer_batch,
        gradient_accumulation_steps=sequences // work.minibatches // work.peer_batch,
        gradient_checkpointing=False,  # its default is True, which is slower
        max_steps=work.rounds * work.minibatches,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        seed=work.seed,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    trainer.tokens = 0
    return trainer


def main() -> None:
    """One round, timed from the first token to the end of the last optimiser step."""
    work = told_work()
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                spent[name] += time.perf_counter() - began

        return inside

    with TemporaryDirectory() as scratch:
        trainer = build_trainer(work, Path(scratch), [])
        trainer._generate = timed("rollouts", trainer._generate)
        trainer._calculate_rewards = timed("rewards", trainer._calculate_rewards)
        began = time.perf_counter()
        trainer.train()
        whole = time.perf_counter() - began
    tell({**spent, "update": whole - sum(spent.values())}, trainer.tokens)


if __name__ == "__main__":
    main()
