"""A user's own function as a reward: found by name, called, its returns made scores."""

import hashlib
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import SupportsFloat

from grpo_core.errors import UserError
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict


def own_reward(name: str) -> RewardFunction:
    """Wraps a user's function: same samples in, its returns made scores."""
    function = _own_function(name)

    def score(samples: Sequence[Sample]) -> list[Score]:
        started = time.perf_counter()
        try:
            returned = list(function(samples))
        except Exception as error:
            raise UserError(
                f"The reward {name} failed with {type(error).__name__}: {error}; mend that function."
            ) from error
        if len(returned) != len(samples):
            raise UserError(
                f"The reward {name} returned {len(returned)} values for {len(samples)} samples; return one for each."
            )
        seconds = (time.perf_counter() - started) / max(1, len(samples))
        return [_own_score(name, value, seconds) for value in returned]

    return score


def _own_score(name: str, value: object, seconds: float) -> Score:
    """A ``Score`` as it is; a number as ``ok`` above 0, else ``wrong``; None and non-finite ones as ``error``."""
    if isinstance(value, Score):
        if value.reward is not None and not math.isfinite(value.reward):
            return Score(Verdict.ERROR, None, {}, value.extracted, f"the reward is {value.reward}", value.seconds)
        return value
    if value is None:
        return Score(Verdict.ERROR, None, detail="the reward is None", seconds=seconds)
    if isinstance(value, str) or not isinstance(value, SupportsFloat):
        raise UserError(
            f"The reward {name} returned a {type(value).__name__} for a sample; return a Score, a number or None."
        )
    reward = float(value)
    if not math.isfinite(reward):
        return Score(Verdict.ERROR, None, detail=f"the reward is {reward}", seconds=seconds)
    return Score(Verdict.OK if reward > 0 else Verdict.WRONG, reward, {"reward": reward}, seconds=seconds)


def _own_function(name: str) -> Callable[[Sequence[Sample]], Sequence[object]]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UserError(f"reward.name {name!r} is not of the form package.module:function; write both parts.")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # a file beside the config; last, so that it hides no installed module
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(f"reward.name {name!r}: its module fails to import ({error}); install that.") from error
        raise UserError(
            f"reward.name {name!r}: there is no module {error.name}; run from its folder or add that to PYTHONPATH."
        ) from error
    except Exception as error:
        raise UserError(
            f"reward.name {name!r}: its module fails to import ({type(error).__name__}: {error}); mend that file."
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(f"reward.name {name!r}: {module_name} has no function {attribute}; correct the name.")
    found: Callable[[Sequence[Sample]], Sequence[object]] = function
    return found


@lru_cache
def own_code_digest(name: str) -> str:
    """Taken once a process, like the module itself: an edit made while a run goes on counts from the next start on."""
    return hashlib.sha256(_own_module_file(name).read_bytes()).hexdigest()


def _own_module_file(name: str) -> Path:
    _own_function(name)
    file = sys.modules[name.partition(":")[0]].__file__
    if file is None or not file.endswith(".py"):
        raise UserError(f"reward.name {name!r}: its module has no .py file to fingerprint; put the function in one.")
    return Path(file)
