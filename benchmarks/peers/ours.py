"""A contestant of ``benchmarks.peers``: this project's own sampling, advantages and update, in one process."""

import time
from pathlib import Path

import torch

from benchmarks.peers.work import CLIP, KL, LEARNING_RATE, TEMPERATURE, tell, told_work
from grpo_core.advantages.config import AdvantageConfig
from grpo_core.advantages.estimate import Batch, estimate
from grpo_core.generation.engine import Request, SamplingParams, seeds_for
from grpo_core.generation.transformers_engine import TransformersEngine
from grpo_core.models import load_policy, load_tokenizer
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.optimizer import new_trainer_state
from grpo_core.policy.update import update_policy


def main() -> None:
    """One step; as the stages do, the reference is loaded when the update begins and counts as part of it."""
    import numpy as np

    work = told_work()
    folder, cpu = Path(work.model), torch.device("cpu")
    model, tokenizer = load_policy(folder, cpu, torch.float32), load_tokenizer(folder)
    engine = TransformersEngine(model, tokenizer)
    requests = [
        Request(f"p{number}", ids, seeds_for(work.seed, 1, f"p{number}", work.group))
        for number, ids in enumerate(work.prompt_ids(tokenizer))
    ]
    sampling = SamplingParams(temperature=TEMPERATURE, top_p=1.0, top_k=0, max_new_tokens=work.new_tokens)
    began = time.perf_counter()
    completions = [one for group in engine.generate(requests, sampling) for one in group]
    generated = time.perf_counter()
    sums = [pair for pair in work.sums() for _ in range(work.group)]
    rewards = np.array(work.rewards([one.text for one in completions], sums))
    found = estimate(
        Batch(
            reward=rewards,
            group=np.repeat(np.arange(work.prompts), work.group),
            sample=np.tile(np.arange(work.group), work.prompts),
            length=np.array([len(one.token_ids) for one in completions]),
            components={},
        ),
        AdvantageConfig(),
        1,
        None,
    )
    scored = time.perf_counter()
    rollouts = [
        TrainingRollout(
            requests[place // work.group].prompt_id,
            requests[place // work.group].prompt_ids,
            one.token_ids,
            one.logprobs,
            # Dead groups are in the loss here: a contestant that computes them anyway does the same work.
            float(found.advantages.advantage[place]),
            in_loss=True,
            truncated=one.finish_reason == "length",
            reward=float(rewards[place]),
        )
        for place, one in enumerate(completions)
    ]
    config = UpdateConfig(
        learning_rate=LEARNING_RATE, kl_coef=KL, clip_low=CLIP, clip_high=CLIP, direction_groups=0, checkpoint_steps=0
    )
    update_policy(
        model,
        load_policy(folder, cpu, torch.float32),
        rollouts,
        new_trainer_state(model, work.seed),
        config,
        temperature=TEMPERATURE,
        seed=work.seed,
        round_number=1,
        max_new_tokens=work.new_tokens,
    )
    ended = time.perf_counter()
    seconds = {"rollouts": generated - began, "rewards": scored - generated, "update": ended - scored}
    tell(seconds, sum(len(one.token_ids) for one in completions))


if __name__ == "__main__":
    main()
