"""Which forward passes a round's update makes, in order, and those without gradient that come before its steps."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from grpo_core.diagnostics import choose_groups
from grpo_core.policy.batching import Microbatch, TrainingRollout, microbatches
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.logprobs import LogprobForm
from grpo_core.policy.lora import base_alone
from grpo_core.policy.ranks import ALONE, Ranks
from grpo_core.policy.step import Forward, PlannedStep, plan_steps, record_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from grpo_core.policy.value import ValueHead


@dataclass(frozen=True, slots=True)
class Passes:
    """A pure function of the rollouts, so that an update that goes on after a kill makes the same ones."""

    reference: list[Microbatch]  # of the reference, for the KL
    before: list[Microbatch]  # of the policy before step one: its logprobs, entropies or values
    steps: list[PlannedStep]
    after: list[Microbatch]  # of the policy after the last step, to see where it went

    @classmethod
    def plan(
        cls,
        kept: Sequence[TrainingRollout],
        config: UpdateConfig,
        form: LogprobForm,
        *,
        device: str,
        seed: int,
        round_number: int,
    ) -> "Passes":
        """Of the rollouts in the loss, on a kind of device."""
        packed = partial(
            microbatches, tokens_per_microbatch=config.microbatch_tokens(device), crossover=form.row_crossover
        )
        live = [rollout for rollout in kept if rollout.in_loss]
        chosen = choose_groups(
            (rollout.prompt_id for rollout in live), config.direction_groups, seed=seed, round_number=round_number
        )
        recompute = config.old_logprobs == "trainer" or config.top_entropy < 1 or config.ppo.alpha(round_number) < 1
        return cls(
            reference=packed(lacking_reference(kept, config)),
            before=packed(kept if recompute else []),
            steps=plan_steps(kept, config, form, device=device, seed=seed, round_number=round_number),
            after=packed([rollout for rollout in live if rollout.prompt_id in chosen]),
        )

    @property
    def total(self) -> int:
        """Micro-batches of all of them."""
        return len(self.reference) + len(self.before) + self._from_step(0)

    def done_after(self, steps: int) -> int:
        """Micro-batches that lie behind an update which has taken so many steps."""
        return self.total - self._from_step(steps) if steps else 0

    def _from_step(self, number: int) -> int:
        return sum(len(step.batches) for step in self.steps[number:]) + len(self.after)


def lacking_reference(kept: Sequence[TrainingRollout], config: UpdateConfig) -> list[TrainingRollout]:
    """Those whose logprobs under the reference are needed and not known."""
    return [rollout for rollout in kept if rollout.ref_logprobs is None] if config.kl_coef > 0 else []


def record_before(
    model: "PreTrainedModel",
    reference: "Callable[[], PreTrainedModel] | None",
    passes: Passes,
    config: UpdateConfig,
    forward: Forward,
    tick: Callable[[], None],
    head: "ValueHead | None",
    ranks: Ranks = ALONE,
) -> None:
    """Fill into the rollouts what the reference and the policy say of them before step one.

    Args:
        reference: loads it; asked only where some logprobs are not known, and let go before this returns. None with
            LoRA, whose base is the reference.
        head: of the values; None in a round without a PPO part.
        ranks: the processes that share the passes; each fills in all of it.
    """
    if passes.reference:
        with base_alone(model) if config.lora is not None and reference is None else nullcontext():
            judge = model if reference is None else reference()
            judge.eval()
            for rollout, seen in record_logprobs(judge, passes.reference, forward, tick, ranks=ranks):
                rollout.ref_logprobs = seen.logprobs
            del judge
    wanted = config.top_entropy < 1
    for rollout, seen in record_logprobs(model, passes.before, forward, tick, wanted, head, ranks):
        rollout.old_entropy, rollout.values = seen.entropy, seen.values
        if config.old_logprobs == "trainer":
            rollout.old_logprobs = seen.logprobs
