import copy
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from grpo_core.errors import UserError
from grpo_core.generation import transformers_engine
from grpo_core.generation.engine import Request, SamplingParams, eos_ids, seeds_for
from grpo_core.generation.transformers_engine import TransformersEngine
from grpo_core.seeding import hash64

PROMPTS = ["What is 3 + 4?", "Hi", "Compute the sum of 12 and 29, please.", "7 x 8 ="]


def requests(tokenizer, count=4, size=6, run_seed=0):
    return [
        Request(str(n), tokenizer(PROMPTS[n])["input_ids"], seeds_for(run_seed, 1, str(n), size)) for n in range(count)
    ]


def params(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=24):
    return SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, max_new_tokens=max_new_tokens)


def ids(groups):
    return [[completion.token_ids for completion in group] for group in groups]


def plain_logprobs(model, request, completion, temperature=1.0):
    """Logprobs of a completion by one forward over prompt and completion, without cache or padding."""
    row = torch.tensor([[*request.prompt_ids, *completion.token_ids]])
    with torch.inference_mode():
        logits = model(input_ids=row).logits[0, len(request.prompt_ids) - 1 : -1] / temperature
    return torch.log_softmax(logits, dim=-1).gather(1, row[0, len(request.prompt_ids) :, None]).flatten().tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_equal_a_plain_forward(engine, tiny, temperature):
    asked = requests(tiny[1])
    for request, group in zip(asked, engine.generate(asked, params(temperature)), strict=True):
        for completion in group:
            expected = plain_logprobs(tiny[0], request, completion, temperature)
            assert completion.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (Qwen2ForCausalLM, Qwen2Config(tie_word_embeddings=True)),
        (MistralForCausalLM, MistralConfig(sliding_window=8)),  # shorter than every row: its cache is no growing one
    ],
    ids=["qwen2", "mistral-sliding"],
)
def test_other_architectures_give_the_same_logprobs_as_a_plain_forward(tiny, kind, config):
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "num_key_value_heads", "max_position_embeddings", "eos_token_id"):  # fmt: skip
        setattr(config, name, getattr(tiny[0].config, name))
    torch.manual_seed(0)
    model = kind(config).eval()
    asked = requests(tiny[1])
    groups = TransformersEngine(model, tiny[1]).generate(asked, params())
    for request, group in zip(asked, groups, strict=True):
        for completion in group:
            assert completion.logprobs == pytest.approx(plain_logprobs(model, request, completion), abs=1e-4)


def test_equal_calls_give_equal_results_and_other_seeds_others(engine, tiny):
    first, second = (engine.generate(requests(tiny[1]), params()) for _ in range(2))
    assert first == second
    assert ids(engine.generate(requests(tiny[1], run_seed=1), params())) != ids(first)
    flat = [tuple(row) for group in ids(first) for row in group]
    assert len(set(flat)) > len(flat) // 2


def test_a_completion_does_not_depend_on_its_companions(engine, tiny):
    together = ids(engine.generate(requests(tiny[1]), params()))
    for number, request in enumerate(requests(tiny[1])):
        assert ids(engine.generate([request], params())) == [together[number]]
        one = Request(request.prompt_id, request.prompt_ids, request.seeds[3:4])
        assert ids(engine.generate([one], params())) == [together[number][3:4]]


def test_a_shorter_limit_gives_a_prefix(engine, tiny):
    long, short = (ids(engine.generate(requests(tiny[1]), params(max_new_tokens=n))) for n in (24, 5))
    assert short == [[row[:5] for row in group] for group in long]


def test_finish_reasons(engine, tiny):
    eos = eos_ids(tiny[0].config, tiny[1])
    reasons = Counter()
    for group in engine.generate(requests(tiny[1], size=16), params(max_new_tokens=24)):
        for completion in group:
            reasons[completion.finish_reason] += 1
            stopped = completion.token_ids[-1] in eos
            assert completion.finish_reason == ("stop" if stopped else "length")
            assert stopped or len(completion.token_ids) == 24
            assert not eos & set(completion.token_ids[:-1])
            assert len(completion.logprobs) == len(completion.token_ids)
            assert completion.text == tiny[1].decode(completion.token_ids, skip_special_tokens=True)
            assert "<|eos|>" not in completion.text
    assert min(reasons["stop"], reasons["length"]) > 3


def test_dropping_finished_rows_changes_nothing(engine, tiny, monkeypatch):
    results, lengths = [], []
    for share in (0.0, 1 / 8, 2.0):  # at every end, as shipped, never
        monkeypatch.setattr(transformers_engine, "_DROP_SHARE", share)
        seen = []
        forward = tiny[0].forward
        with monkeypatch.context() as patch:
            patch.setattr(
                tiny[0],
                "forward",
                lambda *a, _f=forward, _s=seen, **k: (_s.append(len(k["input_ids"])), _f(*a, **k))[1],
            )
            results.append(engine.generate(requests(tiny[1], size=16), params(max_new_tokens=100)))
        lengths.append(seen[1:])
    assert ids(results[0]) == ids(results[1]) == ids(results[2])
    assert set(lengths[2]) == {64}
    assert all(a >= b for a, b in pairwise(lengths[1]))
    assert sum(lengths[0]) <= sum(lengths[1]) < sum(lengths[2])
    logprobs = [[lp for group in result for c in group for lp in c.logprobs] for result in results]
    assert logprobs[0] == pytest.approx(logprobs[2], abs=1e-5)
    assert logprobs[1] == pytest.approx(logprobs[2], abs=1e-5)


def test_prompts_are_prefilled_once_for_their_group(engine, tiny, monkeypatch):
    shapes, forward = [], tiny[0].forward
    monkeypatch.setattr(
        tiny[0], "forward", lambda *a, **k: (shapes.append(tuple(k["input_ids"].shape)), forward(*a, **k))[1]
    )
    engine.generate(requests(tiny[1]), params(max_new_tokens=3))
    assert shapes[0] == (4, max(map(len, PROMPTS)))
    assert all(width == 1 for _, width in shapes[1:])
    assert len(shapes) == 3  # the last token needs no forward after it


def test_the_cache_grows_past_its_first_room(engine, tiny):
    asked = [Request("0", tiny[1]("Hi")["input_ids"], [1])]
    without_end = TransformersEngine(*tiny)
    without_end._eos = frozenset()
    [[completion]] = without_end.generate(asked, params(max_new_tokens=300))
    assert len(completion.token_ids) == 300
    assert completion.logprobs == pytest.approx(plain_logprobs(tiny[0], asked[0], completion), abs=1e-4)


def test_token_frequencies_match_the_softmax(engine, tiny):
    draws, request = 4000, requests(tiny[1])[0]
    seeds = [hash64("frequencies", index) for index in range(draws)]
    [group] = engine.generate([Request("0", request.prompt_ids, seeds)], params(0.8, max_new_tokens=1))
    with torch.inference_mode():
        logits = tiny[0](input_ids=torch.tensor([request.prompt_ids])).logits[0, -1].double()
    expected = torch.softmax(logits / 0.8, dim=-1).numpy() * draws
    found = np.bincount([completion.token_ids[0] for completion in group], minlength=len(expected))
    often = expected >= 5
    chi2 = float((((found - expected)[often]) ** 2 / expected[often]).sum())
    freedom = int(often.sum())
    assert freedom > 20
    # Chi-square has mean k and variance 2k; four deviations either way, so that a too even draw fails as well.
    assert abs(chi2 - freedom) < 4 * (2 * freedom) ** 0.5


def test_top_k_of_one_equals_greedy(engine, tiny):
    asked = requests(tiny[1])
    greedy, narrow = engine.generate(asked, params(0.0)), engine.generate(asked, params(top_k=1))
    assert ids(greedy) == ids(narrow)
    assert {lp for group in narrow for c in group for lp in c.logprobs} == {0.0}
    for request, group in zip(asked, greedy, strict=True):
        assert len({tuple(c.token_ids) for c in group}) == 1
        assert group[0].logprobs == pytest.approx(plain_logprobs(tiny[0], request, group[0]), abs=1e-4)


def test_several_eos_ids_from_every_place(tiny):
    model, tokenizer = copy.deepcopy(tiny[0]), tiny[1]
    model.generation_config.eos_token_id = [40, 41]
    model.config.eos_token_id = 42
    assert eos_ids(model.generation_config, model.config, tokenizer) == {40, 41, 42, tokenizer.eos_token_id}
    groups = TransformersEngine(model, tokenizer).generate(requests(tokenizer, size=32), params(max_new_tokens=60))
    ends = Counter(c.token_ids[-1] for group in groups for c in group if c.finish_reason == "stop")
    assert len(ends) > 1
    assert set(ends) <= {40, 41, 42, tokenizer.eos_token_id}
    assert not any({40, 41, 42} & set(c.token_ids[:-1]) for group in groups for c in group)


def test_progress_counts_finished_completions(engine, tiny):
    heard = []
    engine.generate(requests(tiny[1]), params(max_new_tokens=60), lambda done, total: heard.append((done, total)))
    assert {total for _, total in heard} == {24}
    assert heard[-1] == (24, 24)
    assert len(heard) > 3
    assert all(a < b for (a, _), (b, _) in pairwise(heard))


def test_groups_of_unequal_size_and_of_none(engine, tiny):
    full = requests(tiny[1])
    uneven = [Request(r.prompt_id, r.prompt_ids, r.seeds[:n]) for r, n in zip(full, (1, 0, 4, 2), strict=True)]
    groups = ids(engine.generate(uneven, params()))
    assert [len(group) for group in groups] == [1, 0, 4, 2]
    assert groups == [group[:n] for group, n in zip(ids(engine.generate(full, params())), (1, 0, 4, 2), strict=True)]
    assert engine.generate([], params()) == []


def test_what_cannot_fit_is_refused_with_the_keys_to_change(engine, tiny):
    limit = tiny[0].config.max_position_embeddings
    with pytest.raises(UserError, match=r"data\.max_prompt_tokens") as caught:
        engine.generate(requests(tiny[1]), params(max_new_tokens=limit - 10))
    assert "generation.max_new_tokens" in str(caught.value)
    assert str(limit) in str(caught.value)


def test_a_broken_policy_is_refused(tiny):
    model = copy.deepcopy(tiny[0])
    model.model.norm.weight.data[0] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        TransformersEngine(model, tiny[1]).generate(requests(tiny[1]), params())


def test_ids_that_the_tokenizer_does_not_know_have_no_text(tiny):
    """Heads are often padded to a round number of ids, and a sampler meets each of them some day."""
    config = LlamaConfig.from_dict({**tiny[0].config.to_dict(), "vocab_size": 1024})
    torch.manual_seed(0)
    [group] = TransformersEngine(LlamaForCausalLM(config).eval(), tiny[1]).generate(requests(tiny[1], 1), params())
    assert max(max(c.token_ids) for c in group) >= len(tiny[1])
    assert all(isinstance(c.text, str) for c in group)


def test_the_engine_names_itself(engine):
    assert (engine.name, engine.version) == ("transformers", transformers.__version__)
