import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.losses import LossInputs, LossSums, denominator, loss_sums
from grpo_core.policy.segments import Segments

LN2 = math.log(2)


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inputs(
    ratios: list[list[float]],
    advantages: list[list[float]] | list[float],
    references: list[list[float]] | None = None,
    samplers: list[list[float]] | None = None,
    **more: Any,
) -> LossInputs:
    """Sequences of the given ratios; old logprobs of -3. References and samplers as ratios over the old ones."""
    flat = tensor([ratio for sequence in ratios for ratio in sequence])
    spread = [[a] * len(r) if isinstance(a, float) else a for a, r in zip(advantages, ratios, strict=True)]

    def other(values: list[list[float]] | None) -> torch.Tensor | None:
        return None if values is None else tensor([v for sequence in values for v in sequence]).log() - 3

    return LossInputs(
        segments=Segments.of(torch.tensor([len(sequence) for sequence in ratios])),
        logprobs=(flat.log() - 3).requires_grad_(),
        old_logprobs=torch.full_like(flat, -3.0),
        advantages=tensor([a for sequence in spread for a in sequence]),
        entropy=torch.ones_like(flat),
        reference_logprobs=other(references),
        sampler_logprobs=other(samplers),
        **more,
    )


def sums(given_inputs: LossInputs, **config: Any) -> tuple[LossSums, list[float]]:
    """The sums and the gradient of the loss by logprob."""
    settings = UpdateConfig(**config)
    found = loss_sums(given_inputs, settings, settings.clip_low, settings.clip_high)
    found.loss.backward()
    assert given_inputs.logprobs.grad is not None
    return found, given_inputs.logprobs.grad.tolist()


def close(values: Any) -> Any:
    return pytest.approx(values, abs=1e-12)


# -- clipping, token by token --


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "low", "high"),
    [
        (1.0, 2.0, -2.0, -2.0, 0, 0),
        (1.0, -2.0, 2.0, 2.0, 0, 0),
        (1.1, 1.0, -1.1, -1.1, 0, 0),  # inside: d(-ratio A)/d logprob = -ratio A
        (1.5, 1.0, -1.28, 0.0, 0, 1),  # rewarded and far above: held at 1 + 0.28, no gradient
        (1.5, -1.0, 1.5, 1.5, 0, 0),  # punished and above: pulled back without a bound
        (0.5, 1.0, -0.5, -0.5, 0, 0),  # rewarded and below: pulled back without a bound
        (0.5, -1.0, 0.8, 0.0, 1, 0),  # punished and far below: held at 1 - 0.2
        (0.5, 0.0, 0.0, 0.0, 0, 0),  # no advantage: nothing is held
        (1.25, 1.0, -1.25, -1.25, 0, 0),  # between the low width and the high one
    ],
)
def test_ppo_by_hand(ratio: float, advantage: float, loss: float, gradient: float, low: int, high: int) -> None:
    found, gradients = sums(inputs([[ratio]], [advantage]), clip_high=0.28)
    assert float(found.loss.detach()) == close(loss)
    assert gradients == close([gradient])
    assert (int(found.clipped_low), int(found.clipped_high), int(found.clipped_dual)) == (low, high, 0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "dual"),
    [
        (4.0, -2.0, 6.0, 0.0, 1),  # 3 * 2 instead of 4 * 2, and no gradient
        (2.0, -2.0, 4.0, 4.0, 0),
        (4.0, 2.0, -2.4, 0.0, 0),  # rewarded: the usual bound
    ],
)
def test_dual_clip_by_hand(ratio: float, advantage: float, loss: float, gradient: float, dual: int) -> None:
    found, gradients = sums(inputs([[ratio]], [advantage]), dual_clip=3)
    assert float(found.loss.detach()) == close(loss)
    assert gradients == close([gradient])
    assert int(found.clipped_dual) == dual


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight", "low", "high"),
    [
        (1.5, 1.0, 1.28, 0, 1),
        (1.5, -1.0, 1.28, 0, 1),
        (0.5, -1.0, 0.8, 1, 0),
        (1.1, 2.0, 1.1, 0, 0),
        (0.5, 0.0, 0, 0, 0),
    ],
)
def test_cispo_by_hand(ratio: float, advantage: float, weight: float, low: int, high: int) -> None:
    # -weight * A * logprob: every token keeps a gradient, -weight * A.
    found, gradients = sums(inputs([[ratio]], [advantage]), clip="cispo", clip_high=0.28)
    assert float(found.loss.detach()) == close(-weight * advantage * (math.log(ratio) - 3))
    assert gradients == close([-weight * advantage])
    assert (int(found.clipped_low), int(found.clipped_high)) == (low, high)


def test_sapo_by_hand() -> None:
    # tau = ln 3 and ratio 2: sigmoid(ln 3) = 3/4, so the loss is -3 / tau; its gradient by logprob is
    # -4 * 3/4 * 1/4 * ratio = -1.5. Punished with tau = ln 9: sigmoid = 9/10; 3.6 / tau and 4 * 0.09 * 2 = 0.72.
    temperatures = (math.log(3), math.log(9))
    found, gradients = sums(inputs([[2.0], [2.0]], [1.0, -1.0]), clip="sapo", sapo_temperatures=temperatures)
    assert float(found.loss.detach()) == close(-3 / math.log(3) + 3.6 / math.log(9))
    assert gradients == close([-1.5, 0.72])
    assert int(found.clipped_high) == 0


@pytest.mark.parametrize("clip", ["ppo", "cispo", "sapo", "none"])
def test_at_ratio_one_every_clipping_has_the_gradient_of_the_policy(clip: str) -> None:
    _, gradients = sums(inputs([[1.0, 1.0]], [[3.0, -2.0]]), clip=clip)
    assert gradients == close([-3.0, 2.0])


def test_no_clipping_is_ratio_times_advantage() -> None:
    found, gradients = sums(inputs([[9.0, 0.1]], [[2.0, -1.0]]), clip="none")
    assert float(found.loss.detach()) == close(-17.9)
    assert gradients == close([-18.0, 0.1])
    assert int(found.clipped_high) + int(found.clipped_low) == 0


# -- the level of the ratio --


def test_the_ratio_of_a_sequence_is_its_geometric_mean() -> None:
    # 2 and 8 make 4 for both tokens; its gradient by each logprob is 4 / 2, twice.
    found, gradients = sums(inputs([[2.0, 8.0], [1.5]], [1.0, -1.0]), ratio_level="sequence", clip="none")
    assert float(found.loss.detach()) == close(-8 + 1.5)
    assert gradients == close([-4.0, -4.0, 1.5])
    assert float(found.ratio) == close(4 + 4 + 1.5)
    assert float(found.ratio_squared) == close(16 + 16 + 2.25)
    assert float(found.ratio_max) == close(4)


def test_a_sequence_is_held_as_a_whole() -> None:
    found, gradients = sums(inputs([[1.0, 1.6], [1.1, 0.9]], [1.0, 1.0]), ratio_level="sequence")
    assert int(found.clipped_high) == 2  # sqrt(1.6) = 1.26
    assert gradients[:2] == [0.0, 0.0]
    assert gradients[2:] == close([-math.sqrt(0.99)] * 2)


def test_sequence_token_has_the_value_of_the_sequence_and_each_tokens_gradient() -> None:
    # Advantages differ by token: s = 4; d loss / d logprob_t = -s A_t rather than -s mean(A).
    one, whole = sums(inputs([[2.0, 8.0]], [[1.0, -3.0]]), ratio_level="sequence", clip="none")
    two, own = sums(inputs([[2.0, 8.0]], [[1.0, -3.0]]), ratio_level="sequence_token", clip="none")
    assert float(one.loss.detach()) == close(8.0)
    assert float(two.loss.detach()) == close(8.0)
    assert whole == close([4.0, 4.0])
    assert own == close([-4.0, 12.0])


# -- aggregation --


def test_aggregations_by_hand() -> None:
    # Lengths 1 and 3; ratios 1, so tokens lose -A: -1 once, 2 thrice. Tokens of advantage +1 and -2.
    given_inputs = [[1.0], [1.0, 1.0, 1.0]], [1.0, -2.0]
    wanted = {"token": (-1 + 6, 4, [-1, 2, 2, 2]), "sequence": (-1 + 2, 2, [-1, 2 / 3, 2 / 3, 2 / 3])}
    wanted["constant"] = (-1 + 6, 20, [-1, 2, 2, 2])
    for aggregation, (total, divisor, by_token) in wanted.items():
        found, gradients = sums(inputs(*given_inputs), aggregation=aggregation)
        assert float(found.policy_loss) == close(total)
        assert gradients == close(by_token)
        config = UpdateConfig(aggregation=aggregation)
        assert denominator(config, tokens=4, sequences=2, max_new_tokens=10) == divisor


def test_a_constant_length_of_its_own() -> None:
    config = UpdateConfig(aggregation="constant", constant_length=7)
    assert denominator(config, tokens=4, sequences=2, max_new_tokens=10) == 14
    with pytest.raises(ValueError, match="max_new_tokens"):
        denominator(UpdateConfig(aggregation="constant"), tokens=4, sequences=2, max_new_tokens=None)


# -- KL, entropy, importance, selection --


@pytest.mark.parametrize(
    ("estimator", "values", "gradients"),
    [
        # The reference is twice as likely, half as likely, equal: log ratios of policy to reference -ln2, ln2, 0.
        ("k1", [-LN2, LN2, 0.0], [1.0, 1.0, 1.0]),
        ("k2", [LN2**2 / 2, LN2**2 / 2, 0.0], [-LN2, LN2, 0.0]),
        ("k3", [1 - LN2, LN2 - 0.5, 0.0], [-1.0, 0.5, 0.0]),
    ],
)
@pytest.mark.parametrize("corrected", [False, True])
def test_kl_in_the_loss_by_hand(estimator: str, values: list[float], gradients: list[float], corrected: bool) -> None:
    # Ratios of 2; with the correction the loss is 2 * k and its gradient 2 * (dk + k).
    given_inputs = inputs([[2.0, 2.0, 2.0]], [0.0], [[4.0, 1.0, 2.0]])
    found, by_token = sums(given_inputs, kl_coef=0.5, kl_estimator=estimator, kl_bias_correction=corrected)
    weight = 2.0 if corrected else 1.0
    assert float(found.loss.detach()) == close(0.5 * weight * sum(values))
    wanted = [weight * (g + (k if corrected else 0.0)) for g, k in zip(gradients, values, strict=True)]
    assert by_token == close([0.5 * g for g in wanted])
    assert float(found.kl) == close(0.5)  # always k3
    assert float(found.policy_loss) == close(0.0)


def test_kl_in_the_reward_is_no_term_of_the_loss() -> None:
    found, gradients = sums(inputs([[2.0]], [0.0], [[4.0]]), kl_coef=0.5, kl_in="reward")
    assert float(found.loss.detach()) == 0
    assert gradients == [0.0]
    assert float(found.kl) == close(1 - LN2)


def test_kl_and_entropy_are_aggregated_as_the_policy_loss_is() -> None:
    given_inputs = inputs([[2.0], [2.0, 2.0]], [0.0, 0.0], [[4.0], [1.0, 1.0]])
    entropy = tensor([3.0, 1.0, 2.0]).requires_grad_()
    found, _ = sums(replace(given_inputs, entropy=entropy), aggregation="sequence", kl_coef=1, entropy_coef=0.1)
    assert float(found.loss.detach()) == close((1 - LN2) + (LN2 - 0.5) - 0.1 * (3 + 1.5))
    assert entropy.grad is not None
    assert entropy.grad.tolist() == close([-0.1, -0.05, -0.05])
    assert float(found.entropy) == 6


@pytest.mark.parametrize(
    ("importance", "weights", "outside"),
    [
        # Trainer over sampler, token by token: 4, 1/2 | 3.
        ({"correction": "none"}, [1, 1, 1], 0),
        ({"correction": "truncate", "high": 2}, [2, 0.5, 2], 2),
        ({"correction": "truncate", "low": 0.8, "high": 3.5}, [3.5, 0.8, 3], 2),
        ({"correction": "mask", "low": 0.4, "high": 3.5}, [0, 0.5, 3], 1),  # IcePop
        ({"correction": "truncate", "level": "sequence", "high": 2.5}, [2, 2, 2.5], 1),
        ({"correction": "mask", "level": "sequence", "high": 2.5}, [2, 2, 0], 1),  # masked IS
    ],
)
def test_importance_weights_by_hand(importance: dict[str, Any], weights: list[float], outside: int) -> None:
    given_inputs = inputs([[1.0, 1.0], [1.0]], [1.0, -1.0], None, [[0.25, 2.0], [1 / 3]])
    found, gradients = sums(given_inputs, old_logprobs="trainer", importance=importance)
    assert gradients == close([-weights[0], -weights[1], weights[2]])
    assert int(found.importance_outside) == outside
    level = importance.get("level", "token")
    raw = [4, 0.5, 3] if level == "token" else [2, 2, 3]
    assert float(found.importance) == close(sum(raw))
    assert float(found.importance_squared) == close(sum(r * r for r in raw))
    assert float(found.importance_max) == close(max(raw))


def test_importance_weighs_the_policy_loss_alone() -> None:
    given_inputs = inputs([[2.0]], [0.0], [[4.0]], [[9.0]])
    found, _ = sums(given_inputs, kl_coef=1, old_logprobs="trainer", importance={"correction": "mask", "low": 0.5})
    assert int(found.importance_outside) == 1
    assert float(found.loss.detach()) == close(1 - LN2)


def test_tokens_not_selected_leave_the_policy_loss_and_nothing_else() -> None:
    given_inputs = inputs([[2.0, 1.0]], [1.0], [[4.0, 1.0]], selected=torch.tensor([False, True]))
    found, gradients = sums(given_inputs, kl_coef=1, clip="none")
    assert float(found.policy_loss) == close(-1)
    assert float(found.loss.detach()) == close(-1 + 1 - LN2)
    assert gradients == close([-1.0, -1.0])  # the first is the KL's, the second the policy's
    assert int(found.unselected) == 1


def test_statistics_are_sums() -> None:
    found, _ = sums(inputs([[1.0, 1.5], [0.5]], [1.0, -1.0]))
    assert float(found.policy_loss) == close(-1.0 - 1.2 + 0.8)
    assert float(found.ratio) == close(3.0)
    assert float(found.ratio_squared) == close(1 + 2.25 + 0.25)
    assert float(found.drift) == close(math.log(1.5) + LN2)
    # KL(old || policy) from the old policy's samples: ratio - 1 - ln ratio.
    assert float(found.kl_old) == close(0.5 - math.log(1.5) + (-0.5 + LN2))
    assert float(found.importance) == 0


# -- properties over every combination --

LEVELS, CLIPS, AGGREGATIONS = (
    ["token", "sequence", "sequence_token"],
    ["ppo", "cispo", "sapo", "none"],
    ["token", "sequence"],
)


@given(
    data=st.lists(
        st.tuples(st.lists(st.floats(0.2, 5), min_size=1, max_size=4), st.floats(-3, 3), st.integers(0, 1)),
        min_size=2,
        max_size=5,
    ),
    level=st.sampled_from(LEVELS),
    clip=st.sampled_from(CLIPS),
    aggregation=st.sampled_from(AGGREGATIONS),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=30, deadline=None)
def test_sums_do_not_depend_on_how_sequences_are_parted_or_ordered(
    data: Any, level: str, clip: str, aggregation: str, order: Any
) -> None:
    config = {
        "ratio_level": level,
        "clip": clip,
        "aggregation": aggregation,
        "kl_coef": 0.3,
        "old_logprobs": "trainer",
        "importance": {"correction": "mask", "level": "sequence", "high": 4.0},
    }

    def run(rows: Any) -> tuple[LossSums, list[list[float]]]:
        made = inputs(
            [r for r, _, _ in rows],
            [a for _, a, _ in rows],
            [[1.3] * len(r) for r, _, _ in rows],
            [[0.9 + part] * len(r) for r, _, part in rows],
        )
        found, gradients = sums(made, **config)
        return found, [t.tolist() for t in torch.tensor(gradients).split([len(r) for r, _, _ in rows])]

    together, gradients = run(data)
    numbers = list(range(len(data)))
    order.shuffle(numbers)
    parts = [numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]]
    found = [run([data[n] for n in part]) for part in parts]
    for name in LossSums.__slots__:
        one, two = (float(getattr(sums, name).detach()) for sums, _ in found)
        combined = max(one, two) if name.endswith("_max") else one + two
        assert combined == pytest.approx(float(getattr(together, name).detach()), rel=1e-9, abs=1e-9)
    for part, (_, mine) in zip(parts, found, strict=True):
        assert mine == [pytest.approx(gradients[n], rel=1e-6, abs=1e-9) for n in part]


@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=5), st.floats(-2, 2))
def test_for_one_advantage_a_sequence_sequence_token_is_sequence(ratios: list[float], advantage: float) -> None:
    _, one = sums(inputs([ratios], [advantage]), ratio_level="sequence")
    _, two = sums(inputs([ratios], [advantage]), ratio_level="sequence_token")
    assert one == pytest.approx(two, rel=1e-6, abs=1e-9)
