import json

import pytest
import torch

from grpo_core.canary import CANARY_FILE, check_canary, probe_ids, probe_logprobs
from grpo_core.errors import UserError
from grpo_core.generation.engine import GenerationConfig
from grpo_core.generation.open import open_engine
from grpo_core.models import ModelConfig, save_policy
from grpo_core.tiny import build_tiny


@pytest.fixture
def policy(tmp_path):
    model, tokenizer = build_tiny(0)
    save_policy(model, tokenizer, tmp_path)
    return tmp_path


def test_the_probes_logprobs_are_those_of_the_model():
    model, _ = build_tiny(0)
    ids = [3, 1, 4, 1]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    by_hand = [float(logits[place].log_softmax(-1)[ids[place + 1]]) for place in range(3)]
    assert probe_logprobs(model, ids) == pytest.approx(by_hand, abs=1e-6)
    assert len(set(probe_ids(49152))) == 32
    assert max(probe_ids(100)) < 100


def test_an_engine_on_the_saved_weights_passes_and_on_others_is_stopped(policy):
    with open_engine(policy, ModelConfig(device="cpu"), GenerationConfig()) as engine:
        assert check_canary(engine, policy) == 0.0
        with torch.no_grad():  # one tensor of the engine's is another one than was saved
            engine._model.get_output_embeddings().weight.mul_(1.01)
        with pytest.raises(UserError, match="does not generate with the weights"):
            check_canary(engine, policy)


@pytest.mark.parametrize("content", [None, b"{", b"{}"])
def test_a_policy_without_a_probe_is_one_sentence(policy, content):
    with open_engine(policy, ModelConfig(device="cpu"), GenerationConfig()) as engine:
        (policy / CANARY_FILE).unlink()
        if content is not None:
            (policy / CANARY_FILE).write_bytes(content)
        with pytest.raises(UserError, match=r"canary\.json' can't be read"):
            check_canary(engine, policy)


def test_not_a_number_never_passes(policy):
    told = json.loads((policy / CANARY_FILE).read_bytes())
    (policy / CANARY_FILE).write_text(json.dumps(told | {"logprobs": [float("nan")] * 31}))
    with (
        open_engine(policy, ModelConfig(device="cpu"), GenerationConfig()) as engine,
        pytest.raises(UserError, match="nan nats"),
    ):
        check_canary(engine, policy)
