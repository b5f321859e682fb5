"""A contestant: this project's own sampling, advantages and update, in one process."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.work import CLIP, KL, TEMPERATURE, Sum, Work, prompt_ids, tell, told_work
from grpo_core.advantages.config import AdvantageConfig
from grpo_core.advantages.estimate import Batch, estimate
from grpo_core.generation.engine import Completion, Request, SamplingParams, seeds_for
from grpo_core.generation.transformers_engine import TransformersEngine
from grpo_core.models import load_policy, load_tokenizer
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.optimizer import new_trainer_state
from grpo_core.policy.reference import load_reference
from grpo_core.policy.update import update_policy

CPU = torch.device("cpu")


class Trainer:
    """A policy that can do a round's parts one by one."""

    def __init__(self, work: Work, *, skip_dead: bool) -> None:
        """``skip_dead``: groups without variance stay out of the update, as in a real round."""
        self.work = work
        self.folder = Path(work.model)
        self.model, self.tokenizer = load_policy(self.folder, CPU, torch.float32), load_tokenizer(self.folder)
        self._engine = TransformersEngine(self.model, self.tokenizer)
        self._state = new_trainer_state(self.model, work.seed)
        self._skip_dead = skip_dead

    def requests(self, sums: Sequence[Sum], round_number: int) -> list[Request]:
        """A group for each sum."""
        ids = prompt_ids(self.tokenizer, sums)
        return [
            Request(f"p{n}", tokens, seeds_for(self.work.seed, round_number, f"p{n}", self.work.group))
            for n, tokens in enumerate(ids)
        ]

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """All completions of all groups."""
        sampling = SamplingParams(TEMPERATURE, 1.0, 0, self.work.new_tokens)
        return [one for group in self._engine.generate(requests, sampling) for one in group]

    def accuracy(self, sums: Sequence[Sum]) -> float:
        """Of greedy answers."""
        asked = [Request(f"e{n}", ids, [0]) for n, ids in enumerate(prompt_ids(self.tokenizer, sums))]
        groups = self._engine.generate(asked, SamplingParams(0.0, 1.0, 0, self.work.new_tokens))
        rewards = self.work.rewards([one.text for (one,) in groups], sums)
        return sum(rewards) / len(rewards)

    def weigh(
        self, requests: Sequence[Request], completions: Sequence[Completion], sums: Sequence[Sum]
    ) -> list[TrainingRollout]:
        """Rewards and advantages."""
        group = self.work.group
        rewards = self.work.rewards([one.text for one in completions], [pair for pair in sums for _ in range(group)])
        batch = Batch(
            reward=np.array(rewards),
            group=np.repeat(np.arange(len(requests)), group),
            sample=np.tile(np.arange(group), len(requests)),
            length=np.array([len(one.token_ids) for one in completions]),
            components={},
        )
        found = estimate(batch, AdvantageConfig(), 1, None).advantages
        return [
            TrainingRollout(
                requests[place // group].prompt_id,
                requests[place // group].prompt_ids,
                one.token_ids,
                one.logprobs,
                float(np.nan_to_num(found.advantage[place])),
                in_loss=not self._skip_dead or bool(found.in_loss[place]),
                truncated=one.finish_reason == "length",
                reward=rewards[place],
            )
            for place, one in enumerate(completions)
        ]

    def update(self, rollouts: Sequence[TrainingRollout], round_number: int) -> None:
        """The reference is loaded here and counts as part of it, as in a real round."""
        config = UpdateConfig(
            learning_rate=self.work.learning_rate,
            minibatches=self.work.minibatches,
            kl_coef=KL,
            clip_low=CLIP,
            clip_high=CLIP,
            direction_groups=0,
            tokens_per_microbatch=320,  # as the quickstart has it
        )
        update_policy(
            self.model,
            lambda: load_reference(self.folder, CPU, torch.float32),
            rollouts,
            self._state,
            config,
            temperature=TEMPERATURE,
            seed=self.work.seed,
            round_number=round_number,
            max_new_tokens=self.work.new_tokens,
        )


def main() -> None:
    """Rounds, dead groups computed as well: a contestant that knows of none does so, too. The last one is told."""
    work = told_work()
    trainer = Trainer(work, skip_dead=False)
    for number in range(1, work.rounds + 1):
        sums = work.sums(number)
        requests = trainer.requests(sums, number)
        clock = [time.perf_counter()]
        completions = trainer.sample(requests)
        clock.append(time.perf_counter())
        rollouts = trainer.weigh(requests, completions, sums)
        clock.append(time.perf_counter())
        if work.updates:
            trainer.update(rollouts, number)
            clock.append(time.perf_counter())
    seconds = dict(zip(("rollouts", "rewards", "update"), np.diff(clock).tolist(), strict=False))
    tell(seconds, sum(len(one.token_ids) for one in completions))


if __name__ == "__main__":
    main()
