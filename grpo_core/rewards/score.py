"""From a reward's name to scores: the built-in rewards by name, and what of a reward a fingerprint holds."""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from typing import Any

from grpo_core.errors import UserError
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.math import MATH_VERSION
from grpo_core.rewards.math_reward import math_reward
from grpo_core.rewards.own import own_code_digest, own_reward
from grpo_core.rewards.reward import Reward

__all__ = ["BUILT_IN", "Reward", "RewardConfig", "build_reward", "reward_fingerprint"]


BUILT_IN: dict[str, Callable[[RewardConfig], Reward]] = {"math": math_reward}
"""The rewards that come with the house, by name: a new one is entered here."""


def build_reward(config: RewardConfig) -> Reward:
    """The reward that ``config.name`` names. Cheap: worker processes start when an answer first needs one.

    Raises:
        UserError: for a name that is neither built in nor an importable function.
    """
    if ":" in config.name:
        return Reward(own_reward(config.name))
    return _built_in(config.name)(config)


def reward_fingerprint(config: RewardConfig) -> str:
    """A digest (64 hex digits) of all that may change a score: config, code, and the versions of the libraries behind.

    For a user's own function the code is the file of its module; what that module imports is not looked into.
    """
    parts: dict[str, Any] = {"config": config.model_dump(exclude={"workers"})}
    if ":" in config.name:
        parts["code"] = own_code_digest(config.name)
    else:
        _built_in(config.name)
        parts["version"] = MATH_VERSION
        parts["libraries"] = {name: importlib.metadata.version(name) for name in ("math-verify", "sympy")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _built_in(name: str) -> Callable[[RewardConfig], Reward]:
    builder = BUILT_IN.get(name)
    if builder is None:
        known = ", ".join(sorted(BUILT_IN))
        raise UserError(f"reward.name {name!r} is not known: use a built-in ({known}) or package.module:function.")
    return builder
