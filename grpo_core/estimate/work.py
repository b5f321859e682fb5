"""What one round has to do, as plain counts: lengths, batches, micro-batches of the update at those lengths."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grpo_core.estimate.shapes import meta_model
from grpo_core.estimate.trace import Held, trace_microbatch
from grpo_core.policy.batching import Microbatch, TrainingRollout, microbatches
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.form import attention_crossover, exceeds_window
from grpo_core.policy.logprobs import LogprobForm


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of prompts and completions; the mean of completions is an assumption."""

    prompt_mean: int
    prompt_most: int
    completion_mean: int
    completion_most: int


def expected_form(model_config: Any, longest: int, device: str) -> LogprobForm:
    """What ``inspect_model`` will most likely find; it tries the model out, and here there are no weights."""
    text = model_config.get_text_config()
    return LogprobForm(
        shared_prefix=not exceeds_window(text, longest),
        chunked_head=True,
        softcap=getattr(text, "final_logit_softcapping", None),
        crossover=attention_crossover(meta_model(model_config)),
        by_parts=device == "cpu" and not getattr(text, "attn_logit_softcapping", None),
    )


def packed(
    form: LogprobForm, tokens: int, groups: int, group_size: int, prompt: int, completion: int
) -> list[Microbatch]:
    """The micro-batches, of so many tokens at most, of an optimiser step whose rollouts are all of one length."""
    rollouts = [
        TrainingRollout(
            prompt_id=str(group),
            prompt_ids=np.zeros(prompt, np.int64),
            completion_ids=np.zeros(completion, np.int64),
            old_logprobs=np.zeros(completion, np.float32),
            advantage=0.0,
        )
        for group in range(groups)
        for _ in range(group_size)
    ]
    return microbatches(rollouts, tokens, form.row_crossover)


def largest_held(
    model_config: Any,
    update: UpdateConfig,
    groups: int,
    group_size: int,
    lengths: Lengths,
    *,
    device: str = "cpu",
    compute: torch.dtype = torch.float32,
) -> Held:
    """Of micro-batches of the longest and of mean completions, what the larger one holds.

    Long rows may leave much of ``tokens_per_microbatch`` empty that shorter ones fill.

    Args:
        groups: of an optimiser step.
        device: the kind it runs on.
        compute: precision of forward passes: one process casts to it, ranks gather their weights in it.
    """

    form = expected_form(model_config, lengths.prompt_most + lengths.completion_most, device)
    found = []
    for completion in {lengths.completion_most, lengths.completion_mean}:
        batches = packed(form, update.microbatch_tokens(device), groups, group_size, lengths.prompt_most, completion)
        held = trace_microbatch(
            model_config,
            batches[0],
            form,
            autocast=compute is not torch.float32 and update.ranks == 1,
            dtype=torch.float32 if update.ranks == 1 and update.lora is None else compute,
            recomputed=update.gradient_checkpointing,
            as_on_cpu=device == "cpu" and update.ranks == 1,
            lora=update.lora,
            accumulates=len(batches) > 1 or update.ranks > 1,
        )
        found.append(held)
    return max(found, key=lambda held: held.most)
