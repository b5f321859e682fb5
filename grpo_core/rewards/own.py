"""A user's own function as a reward: found by dotted path or entry point, called, its returns made scores."""

import asyncio
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, SupportsFloat

from grpo_core.errors import UserError
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict, sound

ENTRY_POINTS = "grpo_rounds.rewards"
"""The entry point group in which an installed package names its rewards."""


def entry_point(name: str) -> importlib.metadata.EntryPoint | None:
    """The reward of that name in an installed package; None when there is none.

    Raises:
        UserError: two packages offer one.
    """
    found = {point.value: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name)}
    if len(found) > 1:
        raise UserError(
            f"reward {name!r} is offered by several packages ({', '.join(sorted(found))}); name one of these."
        )
    return next(iter(found.values()), None)


def own_reward(name: str, options: Mapping[str, Any], key: str = "reward.name") -> RewardFunction:
    """The function ``name`` stands for, called with the samples and with ``options`` as keyword arguments.

    It may be a coroutine function. Numbers become scores (``ok`` above 0, else ``wrong``), verdicts become 1 or 0,
    ``Score``s stay, None and what is not finite are errors. ``key`` is where the config names it.

    Raises:
        UserError: the function can't be found or does not take these options; when called, it failed or returned
            something else.
    """
    function = _function(name, key)
    _check_options(name, function, options)

    def score(samples: Sequence[Sample]) -> list[Score]:
        started = time.perf_counter()
        try:
            returned = function(samples, **options)
            returned = list(_awaited(returned) if inspect.iscoroutine(returned) else returned)
        except Exception as error:
            raise UserError(
                f"The reward {name} failed with {type(error).__name__}: {error}; mend that function."
            ) from error
        if len(returned) != len(samples):
            raise UserError(
                f"The reward {name} returned {len(returned)} values for {len(samples)} samples; return one for each."
            )
        seconds = (time.perf_counter() - started) / max(1, len(samples))
        return [_as_score(name, value, seconds) for value in returned]

    return score


@lru_cache
def own_code(name: str, key: str = "reward.name") -> str:
    """Which function ``name`` stands for, and a digest of its module's file; for the fingerprint.

    Taken once a process, like the module itself: an edit made while a run goes on counts from the next start on. What
    the module imports is not looked into; an entry point adds its package's version.
    """
    _function(name, key)
    target, package = _target(name)
    file = sys.modules[target.partition(":")[0]].__file__
    if file is None or not file.endswith(".py"):
        raise UserError(f"{key} {name!r}: its module has no .py file to fingerprint; put the function in one.")
    return json.dumps([target, package, hashlib.sha256(Path(file).read_bytes()).hexdigest()])


def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The coroutine's result, from a loop in a thread of its own: this one may be running a loop already."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(coroutine))
        except BaseException as error:  # raised again by the caller, below
            errors.append(error)

    thread = threading.Thread(target=run, name="own-reward")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _as_score(name: str, value: object, seconds: float) -> Score:
    if isinstance(value, Score):
        return value
    if isinstance(value, Verdict):
        return sound(Score(value, 1.0 if value is Verdict.OK else 0.0, seconds=seconds))
    if value is None:
        return Score(Verdict.ERROR, None, detail="the reward is None", seconds=seconds)
    if isinstance(value, str) or not isinstance(value, SupportsFloat):
        raise UserError(
            f"The reward {name} returned a {type(value).__name__} for a sample; return a Score, a Verdict, a number or "
            "None."
        )
    reward = float(value)
    if not math.isfinite(reward):
        return Score(Verdict.ERROR, None, detail=f"the reward is {reward}", seconds=seconds)
    return Score(Verdict.OK if reward > 0 else Verdict.WRONG, reward, {"reward": reward}, seconds=seconds)


def _check_options(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C: it will say so itself
        return
    try:
        signature.bind([], **options)
    except TypeError as error:
        raise UserError(
            f"The reward {name}{signature} can't be called with its options ({error}); mend options."
        ) from error


def _target(name: str) -> tuple[str, str]:
    """``module:function`` for a dotted path or an entry point, and the entry point's package with its version."""
    if ":" in name:
        return name, ""
    point = entry_point(name)
    assert point is not None, name
    return point.value, f"{point.dist.name} {point.dist.version}" if point.dist else ""


def _function(name: str, key: str) -> Callable[..., Any]:
    module_name, _, attribute = _target(name)[0].partition(":")
    if not module_name or not attribute:
        raise UserError(f"{key} {name!r} is not of the form package.module:function; write both parts.")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # a file beside the config; last, so that it hides no installed module
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(f"{key} {name!r}: its module fails to import ({error}); install that.") from error
        raise UserError(
            f"{key} {name!r}: there is no module {error.name}; run from its folder or add that to PYTHONPATH."
        ) from error
    except Exception as error:
        raise UserError(
            f"{key} {name!r}: its module fails to import ({type(error).__name__}: {error}); mend that file."
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(f"{key} {name!r}: {module_name} has no function {attribute}; correct the name.")
    found: Callable[..., Any] = function
    return found
