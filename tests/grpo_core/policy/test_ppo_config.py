from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.config import parse_config
from grpo_core.errors import UserError
from grpo_core.policy.ppo_config import PPOConfig

unit = st.floats(0, 1)


def test_alpha_goes_in_equal_steps_and_stays() -> None:
    config = PPOConfig(alpha_start=0.3, alpha_end=0.8, alpha_rounds=11)
    found = [config.alpha(number) for number in (1, 2, 6, 10, 11, 12, 1000)]
    assert found == pytest.approx([0.3, 0.35, 0.55, 0.75, 0.8, 0.8, 0.8], abs=1e-15)
    assert (config.alpha(1), config.alpha(11)) == (0.3, 0.8)


@given(unit, unit, st.integers(2, 50), st.integers(1, 200))
def test_alpha_never_leaves_its_ends(start: float, end: float, rounds: int, number: int) -> None:
    alpha = PPOConfig(alpha_start=start, alpha_end=end, alpha_rounds=rounds).alpha(number)
    assert min(start, end) <= alpha <= max(start, end)


@pytest.mark.parametrize(("start", "end", "mixes"), [(1, 1, False), (1, 0.5, True), (0.3, 1, True), (0, 0, True)])
def test_grpo_alone_is_alpha_one_in_every_round(start: float, end: float, mixes: bool) -> None:
    config = PPOConfig(alpha_start=start, alpha_end=end, alpha_rounds=3)
    assert config.mixes == mixes
    assert any(config.alpha(number) < 1 for number in range(1, 5)) == mixes


def test_the_default_is_grpo_alone() -> None:
    assert {PPOConfig(alpha_rounds=rounds).alpha(n) for rounds in range(2, 60) for n in range(1, 70)} == {1.0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha_start", 1.2),
        ("alpha_end", -0.1),
        ("alpha_end", float("nan")),
        ("alpha_rounds", 1),
        ("gamma", 0),
        ("gamma", 1.01),
        ("gae_lambda", -1),
        ("value_clip", 0),
        ("value_coef", 0),
        ("value_coef", float("inf")),
        ("value_learning_rate", 0),
        ("whiten", "perhaps"),
        ("beta", 1),
    ],
)
def test_impossible_values_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"'update\.ppo\.{key}'.*\.$") as refusal:
        parse_config({"update": {"ppo": {key: value}}}, "Config file 'mine.yaml'")
    assert "\n" not in str(refusal.value)


def test_an_unknown_key_is_told_the_known_ones() -> None:
    with pytest.raises(UserError, match="known here: alpha_end, alpha_rounds, alpha_start, gae_lambda, gamma"):
        parse_config({"update": {"ppo": {"lambda": 0.9}}}, "Config file 'mine.yaml'")
