"""What a model's forward pass allows, found by trying it on a few tokens rather than by lists of model names."""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_core.policy import prefix_attention
from grpo_core.policy.batching import PackedGroup
from grpo_core.policy.logprobs import LogprobForm, completion_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

_TOLERANCE = 1e-3  # nats, in float32: the forms of a model that allows them agree to about 1e-6
_REFUSALS = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError)
_WINDOWS = (("sliding_window", "sliding_attention"), ("attention_chunk_size", "chunked_attention"))


def inspect_model(
    model: "PreTrainedModel", longest: int | None = None, device: torch.device | None = None
) -> LogprobForm:
    """Try the fast forms against the model's own padded forward pass and say which give the same logprobs.

    Costs three or four forward passes over some twenty tokens; draws no random number. Call it outside autocast, on the
    policy in eval mode. A model that refuses a form (an error) or computes something else with it (recurrent layers,
    position biases that ignore position_ids, scaled logits) is used without that form, with a warning in the log.

    Args:
        longest: tokens of the longest prompt with its completion; over a sliding window the rows are padded, because a
            ready-made mask replaces the model's own. None: not known, so any window means padded rows.
        device: where the form will be used; None: where the model is.
    """
    own = LogprobForm(shared_prefix=False, chunked_head=False, softcap=None, crossover=attention_crossover(model))
    config = model.config.get_text_config()
    chunked = replace(own, chunked_head=True, softcap=getattr(config, "final_logit_softcapping", None))
    with torch.no_grad():
        expected = _sample_logprobs(model, own)
    form = chunked if _agrees(model, chunked, expected, "its head called chunk by chunk") else own
    if exceeds_window(config, longest):
        return form
    shared = replace(form, shared_prefix=True)
    by_parts = replace(shared, by_parts=True)
    attention = config._attn_implementation
    if (device or model.device).type == "cpu" and attention in ("sdpa", prefix_attention.NAME):
        if _agrees(model, by_parts, expected, "attention by parts"):
            return by_parts
        model.set_attn_implementation(attention)
    return shared if _agrees(model, shared, expected, "rows with a shared prefix") else form


def attention_crossover(model: "PreTrainedModel") -> float:
    """The row length in tokens at which attention costs as much as the weights.

    In multiplications per token: 2 * hidden * layers * length against one for each weight outside the embedding.
    """
    config = model.config.get_text_config()
    weights: int = model.num_parameters(exclude_embeddings=True)
    per_token: int = 2 * config.hidden_size * config.num_hidden_layers
    return max(1.0, weights / per_token)


def _sample_logprobs(model: "PreTrainedModel", form: LogprobForm) -> Tensor:
    # Two completions that differ from their first token, of unequal length, behind a prompt of three tokens.
    ids = [1 + 7 * place % (model.config.get_text_config().vocab_size - 1) for place in range(10)]
    groups = [PackedGroup(ids[:3], [ids[3:6], ids[6:10]]), PackedGroup(ids[4:6], [ids[1:4]])]
    return completion_logprobs(model, groups, 1.0, want_entropy=False, form=form).logprobs


def _agrees(model: "PreTrainedModel", form: LogprobForm, expected: Tensor, what: str) -> bool:
    try:
        with torch.no_grad():
            found = _sample_logprobs(model, form)
    except _REFUSALS as error:
        logger.warning("%s refuses %s, so it is used without: %s", type(model).__name__, what, error)
        return False
    distance = float((found - expected).abs().max())
    if not distance <= _TOLERANCE:
        logger.warning(
            "%s gives other logprobs with %s (%g), so it is used without", type(model).__name__, what, distance
        )
        return False
    return True


def exceeds_window(config: object, longest: int | None) -> bool:
    kinds = getattr(config, "layer_types", None)
    windows = [getattr(config, name, None) for name, kind in _WINDOWS if kinds is None or kind in kinds]
    return any(window is not None and (longest is None or longest > window) for window in windows)
