import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_core.generation.engine import GenerationConfig, seeds_for
from grpo_core.seeding import hash64


def test_defaults_are_the_usual_recipe():
    config = GenerationConfig()
    assert (config.group_size, config.temperature, config.top_p, config.top_k) == (8, 1.0, 1.0, 0)
    assert config.max_new_tokens == 2048


@pytest.mark.parametrize(
    "bad",
    [{"group_size": 1}, {"temperature": 0}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"max_new_tokens": 0},
     {"shard_groups": 0}, {"engine": "other"}],
)  # fmt: skip
def test_bad_values_are_refused(bad):
    with pytest.raises(ValidationError, match=next(iter(bad))):
        GenerationConfig(**bad)


def test_a_seed_names_its_rollout():
    assert seeds_for(3, 7, "p", 4) == [hash64(3, 7, "p", index) for index in range(4)]


@given(st.integers(0, 2**32), st.integers(0, 10**6), st.text(max_size=8), st.integers(2, 16))
def test_seeds_do_not_depend_on_the_group_size_and_never_meet(run_seed, round_number, prompt_id, size):
    seeds = seeds_for(run_seed, round_number, prompt_id, size)
    assert seeds_for(run_seed, round_number, prompt_id, size + 1)[:size] == seeds
    assert len({*seeds, *seeds_for(run_seed, round_number + 1, prompt_id, size)}) == 2 * size
