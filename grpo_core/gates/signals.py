"""What each gate looks at, worked out from the metrics of a run's manifests."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_core.gates.config import GateName

Metrics = Mapping[str, float]
_LEAST_ROUNDS = 3  # a median of fewer gradient norms says little about the next


@dataclass(frozen=True, slots=True)
class Rule:
    """One gate: its value in words, MLflow's name of the metric behind it, and the bad side of its threshold."""

    gate: GateName
    metric: str
    words: str
    bad_above: bool = True
    place: str = "in round {last}"  # {this} is the round that is about to be trained on


RULES = (
    Rule("clip_ratio", "update/clip_ratio", "share of tokens held at a clipping bound"),
    Rule("kl", "update/kl", "KL to the reference"),
    Rule("kl_old", "update/kl_old", "KL to the policy that generated"),
    Rule("entropy", "update/entropy", "entropy as a share of the first round's", bad_above=False),
    Rule("grad_norm", "update/grad_norm", "gradient norm over the median of the rounds before"),
    Rule("drift", "update/sampler_logprob_drift", "distance of the sampler's and the trainer's logprobs"),
    Rule("effective_sample_size", "update/ratio_ess", "effective share of tokens", bad_above=False),
    Rule("direction", "update/direction", "signed change of logprobs", bad_above=False),
    Rule(
        "zero_variance", "advantage/zero_variance_share", "share of groups that teach nothing", place="in round {this}"
    ),
    Rule("truncated", "rollout/truncated_share", "share of rollouts cut off", place="in round {this}"),
    Rule("unchecked", "reward/unchecked", "share of rollouts without a verdict", place="in round {this}"),
    Rule(
        "accuracy_drop", "eval/accuracy", "fall of the held-out accuracy from its best", place="at the last evaluation"
    ),
)


@dataclass(frozen=True, slots=True)
class Signals:
    """Values by gate in the unit of its threshold, as far as they are known; whether the held-out accuracy rises."""

    round: int
    values: Mapping[GateName, float]
    accuracy_rises: bool | None  # None before there are two evaluations
    accuracies: tuple[float, ...]  # held-out, oldest first


def collect(
    round_number: int,
    *,
    first_update: Metrics,
    last_updates: Sequence[Metrics],
    rollouts: Metrics,
    rewards: Metrics,
    advantages: Metrics,
    accuracies: Sequence[float],
    is_news: bool = True,
    accuracy_margin: float,
) -> Signals:
    """Work out every gate's value.

    Args:
        round_number: the round that is about to be trained on.
        first_update: the update's metrics of round 1; empty before there are any.
        last_updates: those of the rounds before this one, oldest first, as many as shall be compared.
        rollouts, rewards, advantages: metrics of this round.
        accuracies: held-out accuracies of earlier rounds, oldest first, as many as shall be compared.
        is_news: whether the last of them came since the round before; a drop acts once, not until the next evaluation.
        accuracy_margin: see ``GatesConfig``.
    """
    last = last_updates[-1] if last_updates else {}
    norms = [update["grad_norm"] for update in last_updates[:-1] if "grad_norm" in update]
    usual_norm = statistics.median(norms) if len(norms) >= _LEAST_ROUNDS else None
    count = rollouts.get("rollouts")
    unchecked = rewards.get("unchecked")
    values: dict[GateName, float | None] = {
        "clip_ratio": last.get("clip_ratio"),
        "kl": last.get("kl"),
        "kl_old": last.get("kl_old"),
        "entropy": _ratio(last.get("entropy"), first_update.get("entropy")),
        "grad_norm": _ratio(last.get("grad_norm"), usual_norm),
        "drift": last.get("sampler_logprob_drift"),
        "effective_sample_size": last.get("ratio_ess"),
        "direction": last.get("direction"),
        "zero_variance": advantages.get("zero_variance_share"),
        "truncated": rollouts.get("truncated_share"),
        "unchecked": _ratio(unchecked, count),
        "accuracy_drop": max(accuracies) - accuracies[-1] if accuracies and is_news else None,
    }
    rises = accuracies[-1] - accuracies[-2] > accuracy_margin if len(accuracies) > 1 else None
    return Signals(
        round_number, {gate: value for gate, value in values.items() if value is not None}, rises, tuple(accuracies)
    )


def _ratio(value: float | None, base: float | None) -> float | None:
    if value is None or base is None:
        return None
    return value / base if base else (0.0 if value == 0 else math.inf)
