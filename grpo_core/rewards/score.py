"""From a reward's name to scores: the built-in rewards, a user's own function, and what of them a fingerprint holds."""

import hashlib
import importlib
import importlib.metadata
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsFloat

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.errors import UserError
from grpo_core.rewards.extract import final_answer
from grpo_core.rewards.math import MATH_VERSION, MAX_ANSWER_CHARS, quick_check
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict
from grpo_core.rewards.workers import WorkerPool, shared_pool


class RewardConfig(BaseModel):
    """Which reward scores a response, and how. All but ``name`` belongs to the built-in rewards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("math", min_length=1, description="A built-in reward, or package.module:function of your own.")
    correct: float = Field(1.0, allow_inf_nan=False, description="Paid for an answer equal to the gold.")
    box_bonus: float = Field(
        0.1, allow_inf_nan=False, description="Paid on top, right or wrong, for a readable answer in a filled box."
    )
    timeout_seconds: float = Field(
        2.0, gt=0, le=600, description="Wall-clock limit of one check of one answer; over it there is no reward."
    )
    retries: int = Field(1, ge=0, le=10, description="Further tries of a check that timed out or failed.")
    workers: int | None = Field(None, ge=1, le=256, description="Checking processes; null: one a core, 4 at most.")
    unparsable: Literal["zero", "mask"] = Field(
        "zero", description="A response without a readable answer: reward 0, or masked out of its group."
    )


class Reward:
    """A ``RewardFunction`` that can be closed; closing ends worker processes, and a later call starts them again."""

    def __init__(self, function: RewardFunction, pool: WorkerPool | None = None) -> None:
        self._function = function
        self._pool = pool

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """Scores ``samples``, one score each, in order."""
        return self._function(samples)

    def close(self) -> None:
        """Ends the worker processes behind this reward, which rewards of equal settings share."""
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def build_reward(config: RewardConfig) -> Reward:
    """The reward that ``config.name`` names. Cheap: worker processes start when an answer first needs one.

    Raises:
        UserError: for a name that is neither built in nor an importable function.
    """
    if ":" in config.name:
        return Reward(_own_reward(config.name))
    return _built_in(config.name)(config)


def reward_fingerprint(config: RewardConfig) -> str:
    """A digest (64 hex digits) of all that may change a score: config, code, and the versions of the libraries behind.

    For a user's own function the code is the file of its module; what that module imports is not looked into.
    """
    parts: dict[str, Any] = {"config": config.model_dump(exclude={"workers"})}
    if ":" in config.name:
        parts["code"] = _own_code_digest(config.name)
    else:
        _built_in(config.name)
        parts["version"] = MATH_VERSION
        parts["libraries"] = {name: importlib.metadata.version(name) for name in ("math-verify", "sympy")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _math_reward(config: RewardConfig) -> Reward:
    """``correct`` for an answer equal to the gold, ``box_bonus`` for a readable one in a box; see ``Verdict``."""
    pool = shared_pool(config.workers, config.timeout_seconds, config.retries)

    def score(samples: Sequence[Sample]) -> list[Score]:
        scores: list[Score | None] = [None] * len(samples)
        boxed = [False] * len(samples)
        pairs: dict[int, tuple[str, str]] = {}
        for index, sample in enumerate(samples):
            started = time.perf_counter()
            if not sample.gold.strip():
                scores[index] = Score(Verdict.MISSING, None, detail="there is no gold")
                continue
            found = final_answer(sample.response)
            if found is None:
                scores[index] = _math_score(config, Verdict.UNPARSABLE, "no answer found", None, False, started)
                continue
            boxed[index] = found.boxed
            quick = quick_check(found.answer, sample.gold)
            if quick is None:
                pairs[index] = (found.answer, sample.gold)
            else:
                scores[index] = _math_score(config, *quick, found.answer, found.boxed, started)
        results = pool.check(list(pairs.values())) if pairs else []
        for (index, (answer, _)), result in zip(pairs.items(), results, strict=True):
            started = time.perf_counter() - result.seconds
            scores[index] = _math_score(config, result.verdict, result.detail, answer, boxed[index], started)
        return [score for score in scores if score is not None]

    return Reward(score, pool)


def _math_score(
    config: RewardConfig, verdict: Verdict, detail: str, answer: str | None, boxed: bool, started: float
) -> Score:
    seconds = time.perf_counter() - started
    extracted = None if answer is None else answer[:MAX_ANSWER_CHARS]
    if not verdict.is_finding or (verdict is Verdict.UNPARSABLE and config.unparsable == "mask"):
        return Score(verdict, None, extracted=extracted, detail=detail, seconds=seconds)
    components = {
        "correct": config.correct if verdict is Verdict.OK else 0.0,
        "box": config.box_bonus if boxed and verdict is not Verdict.UNPARSABLE else 0.0,
    }
    return Score(verdict, sum(components.values()), components, extracted, detail, seconds)


BUILT_IN: dict[str, Callable[[RewardConfig], Reward]] = {"math": _math_reward}
"""The rewards that come with the house, by name: a new one is entered here."""


def _built_in(name: str) -> Callable[[RewardConfig], Reward]:
    builder = BUILT_IN.get(name)
    if builder is None:
        known = ", ".join(sorted(BUILT_IN))
        raise UserError(f"reward.name {name!r} is not known: use a built-in ({known}) or package.module:function.")
    return builder


def _own_reward(name: str) -> RewardFunction:
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
def _own_code_digest(name: str) -> str:
    """Taken once a process, like the module itself: an edit made while a run goes on counts from the next start on."""
    return hashlib.sha256(_own_module_file(name).read_bytes()).hexdigest()


def _own_module_file(name: str) -> Path:
    _own_function(name)
    file = sys.modules[name.partition(":")[0]].__file__
    if file is None or not file.endswith(".py"):
        raise UserError(f"reward.name {name!r}: its module has no .py file to fingerprint; put the function in one.")
    return Path(file)
