import pytest
import torch
from torch import nn

from grpo_core.diagnostics.gradients import gradient_norms, parts_of_model

FAMILIES = {
    "llama": ["model.embed_tokens.weight", "model.layers.{}.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"],
    "gpt2": [
        "transformer.wte.weight",
        "transformer.h.{}.attn.c_attn.bias",
        "transformer.ln_f.weight",
        "lm_head.weight",
    ],
    "mamba": ["backbone.embeddings.weight", "backbone.layers.{}.mixer.A_log", "backbone.norm_f.weight", "lm_head.w"],
    "experts": [
        "model.embed_tokens.weight",
        "model.layers.{}.mlp.experts.7.w1.weight",
        "model.norm.weight",
        "lm_head.w",
    ],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_thirds_of_the_layers_by_name(family):
    first, layer, *last = FAMILIES[family]
    names = [first, *(layer.format(number) for number in range(7)), *last]
    thirds = ["early"] * 3 + ["middle"] * 2 + ["late"] * 2
    assert parts_of_model(names) == ["embeddings", *thirds, "head", "head"]


def test_a_model_without_numbered_layers_has_no_parts():
    assert parts_of_model(["weight", "bias"]) == []
    assert gradient_norms(dict(nn.Linear(2, 2).named_parameters())) == {}


def test_norms_by_hand_without_what_has_no_gradient():
    names = ["embed.weight", "layers.0.a", "layers.0.b", "layers.1.a", "layers.2.a", "norm.weight"]
    parameters = {name: torch.zeros(2) for name in names}
    for name, gradient in {"layers.0.a": [3.0, 0.0], "layers.0.b": [0.0, 4.0], "norm.weight": [-2.0, 0.0]}.items():
        parameters[name].grad = torch.tensor(gradient)
    assert gradient_norms(parameters) == {"early": 5.0, "head": 2.0}
