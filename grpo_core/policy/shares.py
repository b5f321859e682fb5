"""Which rollouts moved an optimiser step, and how much each: its share of the gradient by the tokens' logprobs.

The share of a rollout is the sum over its tokens of |dL / d logprob|, divided by the same sum over the whole step. L is
the step's loss as it is minimised, its divisor included: policy loss (GRPO's and PPO's alike) and KL. So it says how
hard a rollout pushes on the logprobs of its own tokens. It is not the norm of the rollout's gradient in parameter
space, in which pushes add up or cancel and a token that was certain hardly moves anything: that would take a backward
pass for each rollout, while this comes with the one that is made anyway. Value loss and entropy bonus are left out,
for they don't pull at the chosen tokens' logprobs.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from grpo_core.policy.batching import Microbatch
from grpo_core.policy.ranks import ALONE, Ranks
from grpo_core.policy.segments import Segments
from grpo_core.schemas import STEPS


class StepShares:
    """The rollouts of one optimiser step, gathered over its micro-batches."""

    def __init__(self) -> None:
        self._mine: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = []

    def add(self, segments: Segments, logprobs: Tensor, clipped: Tensor) -> None:
        """A micro-batch after its backward pass.

        Args:
            logprobs: (T,), with the gradient that the backward pass left there.
            clipped: (T,) bool, tokens held at a bound.
        """
        # Nothing came back where no term of the loss reads the logprobs.
        gradient = torch.zeros_like(logprobs) if logprobs.grad is None else logprobs.grad
        pushes, held = segments.sum(gradient.abs().double()), segments.sum(clipped.double())
        self._mine.append((pushes.cpu().numpy(), held.cpu().numpy()))

    def table(
        self,
        batches: Sequence[Microbatch],
        *,
        round_number: int,
        optimizer_step: int,
        trainer_step: int,
        ranks: Ranks = ALONE,
    ) -> pa.Table:
        """A row a rollout, by prompt and sample; shares are 0 where nothing pushes at all.

        Args:
            batches: of the whole step, in order.
            optimizer_step: within the round, from 1.
            trainer_step: within the run.
            ranks: those that have the other micro-batches.
        """
        rollouts = [rollout for batch in batches for rollout in batch.rollouts]
        seen = ranks.in_order(self._mine)
        pushes = np.concatenate([pushes for pushes, _ in seen])
        clipped = np.concatenate([held for _, held in seen]).astype(np.int32)
        order = sorted(range(len(rollouts)), key=lambda n: (rollouts[n].prompt_id, rollouts[n].sample_index))
        total = float(pushes[order].sum())  # in this order, so that it does not depend on the micro-batches
        rows = [
            {
                "rollout_id": rollout.rollout_id,
                "round": round_number,
                "prompt_id": rollout.prompt_id,
                "sample_index": rollout.sample_index,
                "optimizer_step": optimizer_step,
                "trainer_step": trainer_step,
                "tokens": len(rollout.completion_ids),
                "gradient_share": float(pushes[place]) / total if total else 0.0,
                "clipped_tokens": int(clipped[place]),
            }
            for place in order
            for rollout in (rollouts[place],)
        ]
        return pa.Table.from_pylist(rows, schema=STEPS)
