"""The sizes of a model from its config alone: built on the meta device, where a parameter has a shape and no bytes."""

from dataclasses import dataclass
from typing import Any

import torch

from grpo_core.policy.lora_config import LoraConfig

SMALL_BYTES = 2**25
"""glibc maps larger blocks by themselves, at most from here on (M_MMAP_THRESHOLD_MAX), and they leave no holes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Counts that the formulas of memory and time take."""

    parameters: int  # a tied weight once
    body: int  # parameters that multiply every token: neither the embedding nor the head
    head: int  # parameters that multiply every token whose logits are wanted
    layers: int
    hidden: int
    wide: int  # of the MLP
    attention: int  # query heads * head size
    key_value: int  # key-value heads * head size
    vocabulary: int
    layer: int  # parameters of one decoder layer
    root: int  # parameters of embedding and head together
    small: int  # parameters in tensors whose float32 gradient is a small block to glibc
    context: int | None  # most tokens of prompt and completion; None: no bound is known
    adapter: int = 0  # parameters that LoRA trains

    @property
    def key_value_numbers(self) -> int:
        """Numbers that a token leaves in the cache, over all layers."""
        return 2 * self.layers * self.key_value


def shape_of(model_config: Any, lora: LoraConfig | None = None) -> Shape:
    """Count a causal model exactly, by building it without weights.

    Args:
        model_config: of transformers.
        lora: adapters to count beside it.

    Raises:
        ValueError, UserError: transformers has no causal model for the config, or LoRA's targets are not in it.
    """
    model = meta_model(model_config)
    text = model_config.get_text_config()
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    parameters = sum(weight.numel() for weight in model.parameters())
    small = sum(weight.numel() for weight in model.parameters() if weight.nbytes < SMALL_BYTES)
    ends = embedding.numel() + (0 if head is embedding else head.numel())
    adapter = 0
    if lora is not None:
        from grpo_core.policy.lora import add_adapter

        add_adapter(model, lora)
        adapter = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return Shape(
        parameters=parameters,
        body=parameters - ends,
        head=head.numel(),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        wide=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        attention=heads * size,
        key_value=(getattr(text, "num_key_value_heads", None) or heads) * size,
        vocabulary=text.vocab_size,
        layer=(parameters - ends) // text.num_hidden_layers,
        root=ends,
        small=small,
        context=getattr(text, "max_position_embeddings", None),
        adapter=adapter,
    )


def meta_model(model_config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """The model in eval mode on the meta device, with the attention that ``load_policy`` gives it."""
    from transformers import AutoModelForCausalLM

    attention = "eager" if getattr(model_config, "attn_logit_softcapping", None) else "sdpa"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config, dtype=dtype, attn_implementation=attention)
    return model.eval()
