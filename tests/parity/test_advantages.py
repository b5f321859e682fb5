"""The same batches through TRL 1.16 and verl 0.9.1: where the estimators agree, and where they differ on purpose.

`make parity` builds an environment that holds both and runs these; elsewhere they are skipped.
"""

import importlib
import importlib.util
import inspect
import math
import textwrap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from grpo_core.advantages.config import AdvantageConfig
from grpo_core.advantages.estimate import Batch, estimate
from grpo_core.advantages.gae import gae

pytestmark = pytest.mark.parity

NAN = math.nan
SEEDS = range(5)
CLOSE = {"rtol": 0, "atol": 1e-6}


def skip_without(package: str) -> None:
    if importlib.util.find_spec(package) is None:  # one that is there but fails to import is an error
        pytest.skip(f"{package} is not installed; run: make parity")


@pytest.fixture(scope="module")
def verl() -> Any:
    skip_without("verl")
    return importlib.import_module("verl.trainer.ppo.core_algos")


def trl_grpo(
    components: np.ndarray,
    group_size: int,
    *,
    scale: str = "group",
    aggregation: str = "sum_then_normalize",
    weights: list[float] | None = None,
    dtype: torch.dtype = torch.float64,
) -> np.ndarray:
    """The lines of GRPOTrainer that make advantages of rewards (rollouts, functions), run as TRL ships them."""
    block = trl_lines("grpo", "unscorable_mask =", "advantages = torch.nan_to_num(advantages, nan=0.0)")
    trainer = SimpleNamespace(
        multi_objective_aggregation=aggregation,
        scale_rewards=scale,
        reward_funcs=[None] * components.shape[1],
        reward_weights=torch.tensor(weights or [1.0] * components.shape[1], dtype=dtype),
    )
    names = {"self": trainer, "rewards_per_func": torch.tensor(components, dtype=dtype), "device": "cpu"}
    return run_lines("grpo", block, names | {"num_generations": group_size})


def trl_rloo(rewards: np.ndarray, group_size: int) -> np.ndarray:
    """The lines of RLOOTrainer that make advantages of rewards (rollouts,), run as TRL ships them."""
    block = trl_lines("rloo", "grouped_rewards =", "advantages = torch.nan_to_num(advantages, nan=0.0)")
    names = {"self": SimpleNamespace(normalize_advantages=False), "rewards": torch.tensor(rewards)}
    return run_lines("rloo", block, names | {"num_generations": group_size})


def trl_lines(trainer: str, first: str, last: str) -> str:
    """A stretch of lines of a trainer's method; TRL has no function of its own for it."""
    skip_without("trl")
    module = importlib.import_module(f"trl.trainer.{trainer}_trainer")
    method = getattr(module, f"{trainer.upper()}Trainer")._generate_and_score_completions
    lines = inspect.getsource(method).splitlines()
    start = next(n for n, line in enumerate(lines) if first in line)
    end = next(n for n, line in enumerate(lines) if last in line)
    return textwrap.dedent("\n".join(lines[start : end + 1]))


def run_lines(trainer: str, block: str, names: dict[str, Any]) -> np.ndarray:
    namespace = vars(importlib.import_module(f"trl.trainer.{trainer}_trainer")) | names
    exec(compile(block, trainer, "exec"), namespace)
    return namespace["advantages"].numpy()


def through_verl(
    function: Any, rewards: Any, groups: Any, lengths: Any = None, dtype: Any = torch.float64, **more: Any
):
    """A verl estimator with each reward at its completion's last token; returns one advantage a rollout."""
    lengths = np.ones(len(rewards), dtype=int) if lengths is None else np.asarray(lengths)
    mask = torch.tensor(np.arange(lengths.max()) < lengths[:, None], dtype=dtype)
    token_rewards = torch.zeros_like(mask)
    token_rewards[torch.arange(len(rewards)), torch.tensor(lengths - 1)] = torch.tensor(rewards, dtype=dtype)
    advantages, _ = function(token_level_rewards=token_rewards, response_mask=mask, index=np.asarray(groups), **more)
    return advantages[:, 0].numpy()


def ours(
    estimator: str,
    rewards: Any,
    groups: Any,
    lengths: Any = None,
    components: dict[str, np.ndarray] | None = None,
    **config: Any,
) -> np.ndarray:
    rows = np.arange(len(rewards))
    batch = Batch(np.asarray(rewards, dtype=float), np.asarray(groups), rows, lengths, components)
    return estimate(batch, AdvantageConfig(estimator=estimator, **config)).advantages.advantage


def even_batch(seed: int, missing: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Six groups of eight, as TRL wants them; one is dead, and with ``missing`` some rollouts have no reward."""
    draw = np.random.default_rng(seed)
    rewards = draw.choice([0.0, 0.1, 1.0, 1.1, -0.5, draw.normal()], 48)
    rewards[8:16] = 0.7
    if missing:
        rewards[draw.choice(48, 6, replace=False)] = NAN
    return rewards, np.repeat(np.arange(6), 8)


def ragged_batch(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups of two to nine rollouts in mixed order, none of one (there we differ), with lengths.

    Rewards are whole numbers of eighths: in float32, which parts of verl insist on, others leak from dead groups.
    """
    draw = np.random.default_rng(seed)
    groups = draw.permutation(np.repeat(np.arange(8), np.arange(2, 10)))
    rewards = draw.choice([0.0, 0.125, 1.0, 1.125, -0.5], len(groups))
    rewards[groups == 3] = 0.875
    return rewards, groups, draw.integers(1, 20, len(groups))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(("estimator", "scale"), [("group", "group"), ("centred", "none"), ("batch", "batch")])
def test_trl_grpo(estimator: str, scale: str, missing: bool, seed: int) -> None:
    rewards, groups = even_batch(seed, missing)
    np.testing.assert_allclose(ours(estimator, rewards, groups), trl_grpo(rewards[:, None], 8, scale=scale), **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("missing", [False, True])
def test_trl_rloo(missing: bool, seed: int) -> None:
    rewards, groups = even_batch(seed, missing)
    np.testing.assert_allclose(ours("rloo", rewards, groups), trl_rloo(rewards, 8), **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("missing", [False, True])
def test_trl_gdpo(missing: bool, seed: int) -> None:
    rewards, groups = even_batch(seed, missing)
    other = np.where(np.isnan(rewards), NAN, even_batch(seed + 100, missing=True)[0])  # a component may lack alone
    theirs = trl_grpo(np.column_stack([rewards, other]), 8, aggregation="normalize_then_sum", weights=[1.0, 0.5])
    components = {"first": rewards, "second": other}
    found = ours("gdpo", rewards, groups, components=components, component_weights={"first": 1.0, "second": 0.5})
    np.testing.assert_allclose(found, theirs, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("estimator", "name", "config", "more"),
    [
        ("group", "grpo", {"epsilon": 1e-6}, {}),
        ("centred", "grpo", {}, {"norm_adv_by_std_in_grpo": False}),
        ("group", "grpo_vectorized", {"epsilon": 1e-6}, {}),
        ("rloo", "rloo", {}, {}),
        ("rloo", "rloo_vectorized", {}, {}),
        ("opo", "opo", {}, {}),
    ],
)
def test_verl_group_estimators(
    verl: Any, estimator: str, name: str, config: dict[str, Any], more: dict[str, Any], seed: int
) -> None:
    rewards, groups, lengths = ragged_batch(seed)
    theirs = through_verl(verl.get_adv_estimator_fn(name), rewards, groups, lengths, **more)
    np.testing.assert_allclose(ours(estimator, rewards, groups, lengths, **config), theirs, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_verl_reinforce_plus_plus_baseline(verl: Any, seed: int) -> None:
    rewards, groups, _ = ragged_batch(seed)  # completions of equal length: verl's statistics are over tokens
    for length in (1, 40):
        lengths = np.full(len(rewards), length)
        theirs = through_verl(verl.get_adv_estimator_fn("reinforce_plus_plus_baseline"), rewards, groups, lengths)
        correction = math.sqrt((len(rewards) * length - 1) / (len(rewards) * length) / (1 - 1 / len(rewards)))
        found = ours("reinforce_pp_baseline", rewards, groups, epsilon=1e-8) * correction  # n - 1 tokens or rollouts
        np.testing.assert_allclose(found, theirs, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_verl_gdpo(verl: Any, seed: int) -> None:
    first, groups, _ = ragged_batch(seed)
    second = np.random.default_rng(seed).choice([0.0, 0.125], len(first))
    rows = len(first)
    theirs = through_verl(
        verl.compute_gdpo_outcome_advantage,
        first + second,
        groups,
        epsilon=1e-8,  # as verl has it in the whitening that follows
        config={"gdpo_reward_keys": ["first", "second"], "gdpo_reward_weights": [1.0, 0.5]},
        non_tensor_batch={"first": first, "second": second},
        batch={"prompts": torch.zeros(rows, 1), "attention_mask": torch.ones(rows, 2, dtype=torch.long)},
    )
    components, weights = {"first": first, "second": second}, {"first": 1.0, "second": 0.5}
    found = ours("gdpo", first + second, groups, components=components, component_weights=weights, epsilon=1e-8)
    np.testing.assert_allclose(found, theirs, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_verl_pass_at_k_is_ours_with_k_of_the_group_size(verl: Any, seed: int) -> None:
    # Best of all n: only the best rollout adds anything, its lead over the second; times n, see pass_at_k.
    rewards, groups = even_batch(seed)
    rewards = rewards + np.random.default_rng(seed).normal(size=48) * (groups != 1)
    function = verl.compute_grpo_passk_outcome_advantage
    theirs = through_verl(function, rewards, groups, config={"norm_adv_by_std_in_grpo": False})
    np.testing.assert_allclose(ours("pass_at_k", rewards, groups, pass_k=8), 8 * theirs, rtol=0, atol=8e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.99, 0.9), (0.9, 0.0)])
def test_verl_gae(verl: Any, gamma: float, lam: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 12, 6)
    mask = np.arange(12) < lengths[:, None]
    mask[0, :4] = [True, False, False, True]  # a tool's output in between
    values, rewards = draw.normal(size=(6, 12)), draw.normal(size=6)
    last = 11 - mask[:, ::-1].argmax(axis=1)
    token_rewards = torch.zeros(6, 12, dtype=torch.float64)
    token_rewards[torch.arange(6), torch.tensor(last)] = torch.tensor(rewards)
    advantages, returns = verl.compute_gae_advantage_return(
        token_rewards, torch.tensor(values), torch.tensor(mask, dtype=torch.float64), gamma, lam
    )
    found = gae(rewards, values, mask, gamma, lam, whitened=True)
    np.testing.assert_allclose(found.advantage[mask], advantages.numpy()[mask], **CLOSE)
    np.testing.assert_allclose(found.returns[mask], returns.numpy()[mask], **CLOSE)


# Where we differ on purpose.


def test_a_dead_group_in_float32_leaks_elsewhere_and_is_exactly_zero_here(verl: Any) -> None:
    # Seven rewards of 0.9 in float32: their mean is off by the last place, 2^-24, and the std is that times sqrt(7/6)
    # (ddof 1). Over std + 1e-4 (TRL) it is 0.0006, over std + 1e-6 (verl) 0.056, of one sign for all seven.
    rewards, groups = np.full(7, 0.9), np.zeros(7, dtype=int)
    residue = 2.0**-24
    theirs = trl_grpo(rewards[:, None], 7, dtype=torch.float32)
    np.testing.assert_allclose(np.abs(theirs), residue / (residue * math.sqrt(7 / 6) + 1e-4), rtol=1e-3)
    for name in ("grpo", "grpo_vectorized"):
        theirs = through_verl(verl.get_adv_estimator_fn(name), rewards, groups, dtype=torch.float32)
        np.testing.assert_allclose(np.abs(theirs), residue / (residue * math.sqrt(7 / 6) + 1e-6), rtol=1e-3)
    # 64 in a row add up to more: a third of a standard deviation.
    many, one = np.full(64, 0.9), np.zeros(64, dtype=int)
    theirs = through_verl(verl.get_adv_estimator_fn("grpo_vectorized"), many, one, dtype=torch.float32)
    assert np.abs(theirs).min() > 0.3
    for epsilon in (1e-4, 1e-6, 1e-9):
        assert not ours("group", rewards, groups, epsilon=epsilon).any()
        assert not ours("group", many, one, epsilon=epsilon).any()


def test_a_group_of_one_is_out_and_verl_takes_its_reward_for_its_advantage(verl: Any) -> None:
    rewards, groups = [0.0, 1.0, 0.25], [0, 0, 1]
    for name in ("grpo", "rloo", "opo"):
        assert through_verl(verl.get_adv_estimator_fn(name), rewards, groups)[2] == pytest.approx(0.25, rel=1e-5)
    for estimator in ("group", "rloo", "opo"):
        assert ours(estimator, rewards, groups, np.ones(3, dtype=int))[2] == 0


def test_epsilon_is_1e_4_by_default_as_in_trl_and_1e_6_in_verl(verl: Any) -> None:
    rewards, groups = [0.0, 1.0], [0, 0]
    assert ours("group", rewards, groups)[1] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4), rel=1e-12)
    theirs = through_verl(verl.get_adv_estimator_fn("grpo"), rewards, groups)
    assert theirs[1] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6), rel=1e-12)
    assert trl_grpo(np.array([[0.0], [1.0]]), 2)[1] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4), rel=1e-12)


def test_ddof_0_is_the_only_choice_that_neither_peer_offers(verl: Any) -> None:
    rewards, groups = [0.0, 1.0], [0, 0]
    assert ours("group", rewards, groups, ddof=0, epsilon=1e-6)[1] == pytest.approx(0.5 / (0.5 + 1e-6), rel=1e-12)
    theirs = [
        through_verl(verl.get_adv_estimator_fn("grpo"), rewards, groups)[1],
        trl_grpo(np.array([[0.0], [1.0]]), 2)[1],
    ]
    np.testing.assert_allclose(theirs, math.sqrt(0.5), rtol=2e-4)  # 1/2 over 1/sqrt 2: ddof 1


def test_whitening_counts_rollouts_and_verl_counts_tokens(verl: Any) -> None:
    # One group, rewards 1 and 0, lengths 1 and 3. Centred +-1/2. Over rollouts: mean 0, variance 1/2. Over the four
    # tokens: mean (1/2 - 3/2) / 4 = -1/4, variance (9/16 + 3/16) / 3 = 1/4, so 3/4 and -1/4 over 1/2.
    rewards, groups, lengths = [1.0, 0.0], [0, 0], np.array([1, 3])
    found = ours("reinforce_pp_baseline", rewards, groups, epsilon=1e-8)
    np.testing.assert_allclose(found, [math.sqrt(0.5), -math.sqrt(0.5)], **CLOSE)
    function = verl.get_adv_estimator_fn("reinforce_plus_plus_baseline")
    np.testing.assert_allclose(through_verl(function, rewards, groups, lengths), [1.5, -0.5], **CLOSE)
