"""From signals and thresholds to what is done: one pure function, so that a round done again decides the same."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from grpo_core.errors import UserError
from grpo_core.gates.config import Action, GateName, GatesConfig
from grpo_core.gates.signals import RULES, Rule, Signals


class GateStop(UserError):
    """A gate ended the run before an update; nothing of that update exists."""


@dataclass(frozen=True, slots=True)
class Factors:
    """What a round's update multiplies ``update.learning_rate`` and ``update.kl_coef`` by."""

    learning_rate: float = 1.0
    kl: float = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One gate that found its value bad. ``value`` is None when it is not a finite number."""

    gate: GateName
    metric: str  # MLflow's name of what the value comes from
    value: float | None
    threshold: float
    action: Action  # what is done, which can be less than what was asked for: the reason says why
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gates say before a round's update: the factors in force, the gates crossed, and all that they saw."""

    round: int
    factors: Factors
    findings: tuple[Finding, ...]
    signals: Signals

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which knows no infinity: None stands for what is not finite."""
        told = asdict(self)
        told["signals"]["values"] = {gate: _finite(value) for gate, value in self.signals.values.items()}
        return told

    def stop(self) -> GateStop | None:
        """The error that ends the run, when a gate asks for that."""
        for found in self.findings:
            if found.action == "stop":
                return GateStop(
                    f"Gate {found.gate} stopped the run before the update of round {self.round}: {found.reason}; all "
                    f"before it is kept, and --set gates.actions.{found.gate}=warn or another gates.{found.gate} lets "
                    "the same command go on."
                )
        return None


def decide(config: GatesConfig, signals: Signals, before: Factors) -> Decision:
    """Compare every known value with its threshold and say what is done about it.

    A round lowers the learning rate, or raises the KL coefficient, by one step at most, however many gates ask for it.
    A value that is no finite number is bad on either side. ``raise_kl`` only warns while the held-out accuracy rises,
    or before two evaluations have told: a KL that buys accuracy is no harm.

    Args:
        before: the factors in force in the round before; they stay unless a gate moves them on.
    """
    findings = []
    for rule in RULES:
        threshold: float | None = getattr(config, rule.gate)
        value = signals.values.get(rule.gate)
        if threshold is not None and value is not None and _is_bad(rule, value, threshold):
            findings.append(_finding(config, signals, rule, value, threshold, before))
    done = {found.action for found in findings}
    rate, kl = before.learning_rate, before.kl
    if "lower_lr" in done:
        rate = min(rate, max(config.lr_floor, rate * config.lr_factor))
    if "raise_kl" in done:
        kl = max(kl, min(config.kl_cap, kl * config.kl_factor))
    return Decision(signals.round, Factors(rate, kl), tuple(findings), signals)


def _is_bad(rule: Rule, value: float, threshold: float) -> bool:
    if not math.isfinite(value):
        return True
    return value > threshold if rule.bad_above else value < threshold


def _finding(
    config: GatesConfig, signals: Signals, rule: Rule, value: float, threshold: float, before: Factors
) -> Finding:
    action = config.actions.get(rule.gate, "warn")
    place = rule.place.format(last=signals.round - 1, this=signals.round)
    side = "above" if rule.bad_above else "below"
    reason = f"{rule.words} {place} is {value:.4g}, {side} gates.{rule.gate} {threshold:g}"
    if action == "lower_lr" and before.learning_rate <= config.lr_floor:
        reason += "; the learning rate is at gates.lr_floor already"
    elif action == "raise_kl" and signals.accuracy_rises is not False:
        action = "warn"
        known = "there are no two evaluations yet" if signals.accuracy_rises is None else "the held-out accuracy rises"
        reason += f"; {known}, so the KL coefficient stays"
    elif action == "raise_kl" and before.kl >= config.kl_cap:
        reason += "; the KL coefficient is at gates.kl_cap already"
    return Finding(rule.gate, rule.metric, _finite(value), threshold, action, reason)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
