"""Each gate on its bad side, each action with its bounds, and what is not known."""

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_core.config import RunConfig, load_config
from grpo_core.errors import UserError
from grpo_core.gates import RULES, Factors, GatesConfig, GateStop, Signals, collect, decide

FRESH = Factors()


def signals(accuracy_rises: bool | None = None, **values: float) -> Signals:
    return Signals(7, values, accuracy_rises, ())


def actions(config: GatesConfig, seen: Signals, before: Factors = FRESH) -> list[tuple[str, str]]:
    return [(found.gate, found.action) for found in decide(config, seen, before).findings]


# -- what the gates see --


def test_signals_by_hand():
    updates = [{"grad_norm": norm, "entropy": 1.0} for norm in (1.0, 3.0, 2.0)]
    last = {"grad_norm": 5.0, "entropy": 0.5, "kl": 0.2, "clip_ratio": 0.1, "sampler_logprob_drift": 0.01}
    seen = collect(
        7,
        first_update={"entropy": 2.0},
        last_updates=[*updates, last | {"kl_old": 0.3, "ratio_ess": 0.9, "direction": -0.1}],
        rollouts={"rollouts": 40.0, "truncated_share": 0.25},
        rewards={"unchecked": 4.0},
        advantages={"zero_variance_share": 0.75},
        accuracies=[0.25, 0.75, 0.5],
        accuracy_margin=0.0,
    )
    assert seen.round == 7
    assert seen.values == {
        "clip_ratio": 0.1,
        "kl": 0.2,
        "kl_old": 0.3,
        "entropy": 0.25,
        "grad_norm": 2.5,  # over the median of 1, 2 and 3
        "drift": 0.01,
        "effective_sample_size": 0.9,
        "direction": -0.1,
        "zero_variance": 0.75,
        "truncated": 0.25,
        "unchecked": 0.1,
        "accuracy_drop": 0.25,
    }
    assert seen.accuracy_rises is False


def first_round(**changes: Any) -> Signals:
    known: dict[str, Any] = {
        "first_update": {},
        "last_updates": [],
        "rollouts": {},
        "rewards": {},
        "advantages": {},
        "accuracies": [],
        "accuracy_margin": 0.0,
    }
    return collect(1, **(known | changes))


def test_what_is_not_known_is_no_signal():
    assert first_round().values == {}
    assert first_round(accuracies=[0.5]).accuracy_rises is None
    # Two earlier norms are no median yet; a round without loss has no norm.
    norms = [{"grad_norm": 1.0}, {"grad_norm": 1.0}, {}, {"grad_norm": 9.0}]
    assert "grad_norm" not in first_round(last_updates=norms).values


@pytest.mark.parametrize(("accuracies", "rises"), [([0.5, 0.56], True), ([0.5, 0.54], False), ([0.9, 0.1, 0.2], True)])
def test_the_accuracy_rises_by_more_than_the_margin_over_the_evaluation_before(accuracies, rises):
    assert first_round(accuracies=accuracies, accuracy_margin=0.05).accuracy_rises is rises


# -- thresholds --


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.gate)
def test_every_gate_is_crossed_on_its_bad_side_only_and_can_be_off(rule):
    threshold = getattr(GatesConfig(), rule.gate)
    step = 0.01 if rule.bad_above else -0.01
    (found,) = decide(GatesConfig(), signals(**{rule.gate: threshold + step}), FRESH).findings
    assert (found.gate, found.action, found.value, found.threshold) == (rule.gate, "warn", threshold + step, threshold)
    assert f"{threshold + step:.4g}" in found.reason
    assert f"gates.{rule.gate} {threshold:g}" in found.reason
    for fine in (threshold, threshold - step):
        assert actions(GatesConfig(), signals(**{rule.gate: fine})) == []
    assert actions(GatesConfig(**{rule.gate: None}), signals(**{rule.gate: threshold + step})) == []


def test_the_reason_names_the_round_that_the_value_is_of():
    seen = signals(kl=2.0, truncated=0.9, accuracy_drop=0.3)
    reasons = [found.reason for found in decide(GatesConfig(), seen, FRESH).findings]
    assert reasons == [
        "KL to the reference in round 6 is 2, above gates.kl 1",
        "share of rollouts cut off in round 7 is 0.9, above gates.truncated 0.5",
        "fall of the held-out accuracy from its best at the last evaluation is 0.3, above gates.accuracy_drop 0.1",
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_bad_on_either_side(value):
    decision = decide(GatesConfig(), signals(kl=value, entropy=value), FRESH)
    assert [found.value for found in decision.findings] == [None, None]
    json.dumps(decision.as_dict(), allow_nan=False)


# -- actions --


def test_by_default_every_gate_only_warns():
    everything = {rule.gate: getattr(GatesConfig(), rule.gate) + (1 if rule.bad_above else -1) for rule in RULES}
    decision = decide(GatesConfig(), signals(**everything), FRESH)
    assert {found.action for found in decision.findings} == {"warn"}
    assert len(decision.findings) == len(RULES)
    assert decision.factors == FRESH
    assert decision.stop() is None


def test_the_learning_rate_falls_a_step_a_round_down_to_its_floor_and_stays():
    config = GatesConfig(actions={"clip_ratio": "lower_lr", "grad_norm": "lower_lr"}, lr_factor=0.5, lr_floor=0.2)
    bad, factors, seen = signals(clip_ratio=0.9, grad_norm=99.0), FRESH, []
    for _ in range(4):
        decision = decide(config, bad, factors)
        factors = decision.factors
        seen.append(factors.learning_rate)
    assert seen == [0.5, 0.25, 0.2, 0.2]  # one step, although two gates ask for it
    assert "floor already" in decision.findings[0].reason
    assert decide(config, signals(clip_ratio=0.0), factors).factors == Factors(0.2, 1.0)


def test_a_floor_that_is_raised_later_raises_no_learning_rate():
    config = GatesConfig(actions={"kl": "lower_lr"}, lr_floor=0.8)
    assert decide(config, signals(kl=9.0), Factors(0.1)).factors.learning_rate == 0.1


def test_the_kl_coefficient_rises_up_to_its_cap_while_the_accuracy_does_not():
    config = GatesConfig(actions={"kl": "raise_kl"}, kl_factor=2, kl_cap=3)
    factors, seen = FRESH, []
    for _ in range(3):
        decision = decide(config, signals(accuracy_rises=False, kl=9.0), factors)
        factors = decision.factors
        seen.append(factors.kl)
    assert seen == [2.0, 3.0, 3.0]
    assert decision.findings[0].action == "raise_kl"
    assert "cap already" in decision.findings[0].reason


@pytest.mark.parametrize(("rises", "why"), [(True, "accuracy rises"), (None, "no two evaluations")])
def test_a_kl_that_buys_accuracy_only_warns(rises, why):
    config = GatesConfig(actions={"kl": "raise_kl"})
    decision = decide(config, signals(accuracy_rises=rises, kl=9.0), FRESH)
    assert decision.factors == FRESH
    assert decision.findings[0].action == "warn"
    assert why in decision.findings[0].reason


def test_a_stop_names_gate_value_threshold_and_the_way_on():
    config = GatesConfig(actions={"kl": "stop"}, kl=0.5)
    stop = decide(config, signals(clip_ratio=0.9, kl=0.75), FRESH).stop()
    assert isinstance(stop, GateStop)
    assert isinstance(stop, UserError)
    for part in ("Gate kl", "round 7", "0.75", "gates.kl 0.5", "--set gates.actions.kl=warn"):
        assert part in str(stop)
    assert "\n" not in str(stop)


# -- configuration --


@pytest.mark.parametrize(
    "bad",
    [{"actions": {"kl": "explode"}}, {"actions": {"kll": "warn"}}, {"clip_ratio": 1.5}, {"lr_factor": 1}, {"x": 1}],
)
def test_bad_config(bad):
    with pytest.raises(ValidationError):
        GatesConfig(**bad)


def test_a_kl_of_zero_cannot_be_raised():
    with pytest.raises(ValidationError, match=r"update\.kl_coef is 0"):
        RunConfig(update={"kl_coef": 0}, gates={"actions": {"kl": "raise_kl"}})


def test_thresholds_and_actions_can_be_set_on_the_command_line(tmp_path):
    (tmp_path / "mine.yaml").write_text("gates: {actions: {kl: stop}}\n")
    sets = ["gates.actions.drift=lower_lr", "gates.kl=0.25", "gates.truncated=null"]
    config = load_config(tmp_path / "mine.yaml", sets).gates
    assert config.actions == {"kl": "stop", "drift": "lower_lr"}
    assert (config.kl, config.truncated) == (0.25, None)
    with pytest.raises(UserError, match=r"gates\.actions"):
        load_config(tmp_path / "mine.yaml", ["gates.actions.nothing=warn"])


def test_a_drop_acts_once_and_not_again_until_the_next_evaluation() -> None:
    assert first_round(accuracies=[0.9, 0.5]).values == {"accuracy_drop": 0.4}
    assert first_round(accuracies=[0.9, 0.5], is_news=False).values == {}
