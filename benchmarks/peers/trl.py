"""A contestant of ``benchmarks.peers``: TRL's GRPOTrainer. Runs where TRL is installed (``make parity`` makes that)."""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from benchmarks.peers.work import CLIP, KL, LEARNING_RATE, TEMPERATURE, tell, told_work


def main() -> None:
    """One optimiser step over one batch of rollouts, timed from the first token to the end of the step."""
    work = told_work()
    tokenizer = AutoTokenizer.from_pretrained(work.model, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32, local_files_only=True)
    rows = [{"prompt": chat, "a": a, "b": b} for chat, (a, b) in zip(work.messages(), work.sums(), strict=True)]
    sequences = work.prompts * work.group
    tokens = 0

    def reward(completions: list[Any], completion_ids: list[list[int]], a: list[int], b: list[int], **_: Any) -> Any:
        nonlocal tokens
        tokens += sum(map(len, completion_ids))
        texts = [one[0]["content"] for one in completions]
        return work.rewards(texts, list(zip(a, b, strict=True)))

    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch,
            use_cpu=True,
            bf16=False,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            beta=KL,
            epsilon=CLIP,
            temperature=TEMPERATURE,
            num_generations=work.group,
            max_completion_length=work.new_tokens,
            per_device_train_batch_size=work.peer_batch,
            gradient_accumulation_steps=sequences // work.peer_batch,
            gradient_checkpointing=False,  # its default is True, which is slower
            max_steps=1,
            save_strategy="no",
            report_to="none",
            seed=work.seed,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = GRPOTrainer(
            model=model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
        )  # fmt: skip
        spent: dict[str, float] = defaultdict(float)

        def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def inside(*arguments: Any, **named: Any) -> Any:
                began = time.perf_counter()
                try:
                    return call(*arguments, **named)
                finally:
                    spent[name] += time.perf_counter() - began

            return inside

        trainer._generate = timed("rollouts", trainer._generate)
        trainer._calculate_rewards = timed("rewards", trainer._calculate_rewards)
        began = time.perf_counter()
        trainer.train()
        whole = time.perf_counter() - began
    update = whole - spent["rollouts"] - spent["rewards"]
    tell({"rollouts": spent["rollouts"], "rewards": spent["rewards"], "update": update}, tokens)


if __name__ == "__main__":
    main()
