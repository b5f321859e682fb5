"""Rewards by a second model, on transformers small enough to be built on the spot."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForSequenceClassification

from grpo_core.errors import UserError
from grpo_core.models import save_policy
from grpo_core.rewards import scoring_model
from grpo_core.rewards.logprob import mean_logprobs
from grpo_core.rewards.score import RewardConfig, build_reward, needs_reference, reward_fingerprint
from grpo_core.rewards.scoring_model import batches
from grpo_core.rewards.verdict import Sample, Verdict
from grpo_core.tiny import build_tiny, byte_tokenizer

CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    save_policy(*build_tiny(3), folder)
    return folder


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100))
def test_batches_hold_every_row_once_and_keep_their_size(lengths: list[int], limit: int) -> None:
    found = batches(lengths, limit)
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= limit


def by_hand(model: torch.nn.Module, prompt: list[int], completion: list[int]) -> float:
    with torch.no_grad():
        distribution = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    return sum(float(distribution[len(prompt) + t - 1, token]) for t, token in enumerate(completion)) / len(completion)


def test_mean_logprob_does_not_depend_on_the_batch() -> None:
    model, _ = build_tiny(3)
    pairs = [([1, 5], [6, 7, 8]), ([1], [9]), ([1, 5, 6, 7], [30, 31, 32, 33]), ([4], [])]
    expected = [by_hand(model, *pair) for pair in pairs[:3]]
    for batch_tokens in (1, 8, 1000):
        found = mean_logprobs(model, pairs, batch_tokens)
        assert found[:3] == pytest.approx(expected, abs=1e-5)
        assert found[3] is None


def test_logprob_asks_the_runs_own_policy_with_the_sampled_ids(policy: Path) -> None:
    config = RewardConfig(name="logprob", options=CPU)
    assert needs_reference(config)
    model, _ = build_tiny(3)
    samples = [
        Sample("0", "not read", "", prompt_ids=[1, 5], completion_ids=[6, 7, 2]),
        Sample("1", "", "", prompt_ids=[1]),
    ]
    with build_reward(config, reference=policy) as reward:
        own, empty = reward(samples)
    assert own.reward == pytest.approx(by_hand(model, [1, 5], [6, 7, 2]), abs=1e-5)
    assert (empty.verdict, empty.reward) == (Verdict.MISSING, None)
    with pytest.raises(UserError, match=r"options\.model"):
        build_reward(config)(samples)


def test_logprob_of_a_named_model_reads_the_text_with_its_chat_template_and_end(policy: Path) -> None:
    config = RewardConfig(name="logprob", options={"model": str(policy), "scale": "probability"} | CPU)
    assert not needs_reference(config)
    model, tokenizer = build_tiny(3)
    prompt = tokenizer("<|bos|>user: 1+1?\nassistant: ", add_special_tokens=False)["input_ids"]
    answer = tokenizer("2", add_special_tokens=False)["input_ids"]
    stopped, cut = build_reward(config)(
        [Sample("0", "2", "", "1+1?"), Sample("1", "2", "", "1+1?", finish_reason="length")]
    )
    assert stopped.reward == pytest.approx(
        math.exp(by_hand(model, prompt, [*answer, tokenizer.eos_token_id])), abs=1e-5
    )
    assert cut.reward == pytest.approx(math.exp(by_hand(model, prompt, answer)), abs=1e-5)


def test_fingerprint_holds_the_bytes_of_a_local_model(tmp_path: Path) -> None:
    config = RewardConfig(name="logprob", options={"model": str(tmp_path)})
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = reward_fingerprint(config)
    scoring_model._folder_digest.cache_clear()  # as in a process that starts later
    assert reward_fingerprint(config) == before
    (tmp_path / "model.safetensors").write_bytes(b"others!")
    scoring_model._folder_digest.cache_clear()
    assert reward_fingerprint(config) != before


@pytest.fixture(scope="module")
def judge_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward_model")
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=2,
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_reward_model_gives_its_output_whatever_the_batch(judge_model: Path) -> None:
    samples = [Sample("0", "2", "", "1+1?"), Sample("1", "a longer answer", "", "1+1?"), Sample("2", "", "", "?")]
    model = LlamaForSequenceClassification.from_pretrained(judge_model).eval()
    tokenizer = byte_tokenizer()
    expected = []
    for sample in samples:
        text = f"<|bos|>user: {sample.prompt}\nassistant: {sample.response}\n"
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(float(model(ids).logits[0, 1]))
    for batch_tokens in (1, 10_000):
        options = {"model": str(judge_model), "label": 1, "scale": "logit", "batch_tokens": batch_tokens} | CPU
        with build_reward(RewardConfig(name="reward_model", options=options)) as reward:
            assert [s.reward for s in reward(samples)] == pytest.approx(expected, abs=1e-5)
    options = {"model": str(judge_model), "label": 1} | CPU
    squashed = build_reward(RewardConfig(name="reward_model", options=options))(samples)
    assert [s.reward for s in squashed] == pytest.approx([1 / (1 + math.exp(-x)) for x in expected], abs=1e-5)


def test_a_reward_model_that_does_not_fit_is_named(judge_model: Path, tmp_path: Path) -> None:
    for options, words in (
        ({"model": str(judge_model), "label": 2}, "has 2 outputs"),
        ({"model": str(tmp_path)}, "can't be loaded"),
    ):
        with pytest.raises(UserError, match=words):
            build_reward(RewardConfig(name="reward_model", options=options | CPU))([Sample("0", "", "")])
