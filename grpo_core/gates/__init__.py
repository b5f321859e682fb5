"""Gates: thresholds on a round's vital signs, and what is done before the next update when one is crossed."""

from grpo_core.gates.config import Action, GateName, GatesConfig
from grpo_core.gates.decide import Decision, Factors, Finding, GateStop, decide
from grpo_core.gates.signals import RULES, Rule, Signals, collect

__all__ = [
    "RULES",
    "Action",
    "Decision",
    "Factors",
    "Finding",
    "GateName",
    "GateStop",
    "GatesConfig",
    "Rule",
    "Signals",
    "collect",
    "decide",
]
