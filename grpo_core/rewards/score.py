"""From a config to scores: the built-in rewards by name, and what of a reward a fingerprint holds."""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from grpo_core.errors import UserError
from grpo_core.rewards.code import CODE_VERSION, CodeConfig, code_reward
from grpo_core.rewards.composite import composite
from grpo_core.rewards.config import ComponentConfig, RewardConfig
from grpo_core.rewards.diversity import DIVERSITY_VERSION, DiversityConfig, diversity_reward
from grpo_core.rewards.facts import FACTS_VERSION, FactsConfig, facts_reward
from grpo_core.rewards.format import FORMAT_VERSION, FormatConfig, format_reward
from grpo_core.rewards.judge import JUDGE_VERSION, JudgeConfig, judge_reward
from grpo_core.rewards.length import LENGTH_VERSION, LengthConfig, length_reward
from grpo_core.rewards.logprob import LOGPROB_VERSION, LogprobConfig, logprob_reward
from grpo_core.rewards.math import MATH_VERSION
from grpo_core.rewards.math_reward import math_reward
from grpo_core.rewards.own import entry_point, own_code, own_reward
from grpo_core.rewards.reasoning_gym import REASONING_GYM_VERSION, ReasoningGymConfig, reasoning_gym_reward
from grpo_core.rewards.repetition import REPETITION_VERSION, RepetitionConfig, repetition_reward
from grpo_core.rewards.reward import Reward, retried
from grpo_core.rewards.reward_model import REWARD_MODEL_VERSION, RewardModelConfig, reward_model_reward
from grpo_core.rewards.scoring_model import model_content
from grpo_core.rewards.smoothing import State
from grpo_core.rewards.verdict import RewardFunction

__all__ = [
    "BUILT_IN",
    "Reward",
    "RewardConfig",
    "build_reward",
    "checks_aside",
    "needs_reference",
    "reward_code",
    "reward_fingerprint",
    "reward_settings",
]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A reward that comes with the house.

    Attributes:
        options: the model of its options; ``RewardConfig`` where its keys stand in the section itself.
        build: makes it of its options and the folder of the run's starting policy (None outside a run).
        version: raised whenever a score may change.
        libraries: packages whose versions may change a score.
        whole_groups: it compares the completions of a group.
        tries_again: it has further tries of its own, which know why a check failed.
        neutral: options that change how it is scored and not the score; no fingerprint holds them.
        needs_reference: whether it asks the run's starting policy.
        content: a digest of what the options point to.
    """

    options: type[BaseModel]
    build: Callable[[Any, Path | None], RewardFunction]
    version: int
    libraries: tuple[str, ...] = ()
    whole_groups: bool = False
    tries_again: bool = False
    neutral: frozenset[str] = frozenset()
    needs_reference: Callable[[Any], bool] = lambda _: False
    content: Callable[[Any], str] = lambda _: ""


def _alone(build: Callable[[Any], RewardFunction]) -> Callable[[Any, Path | None], RewardFunction]:
    return lambda options, _: build(options)


_MODEL_LIBRARIES = ("torch", "transformers")

BUILT_IN: dict[str, BuiltIn] = {
    "math": BuiltIn(
        RewardConfig, _alone(math_reward), MATH_VERSION, ("math-verify", "sympy", "mpmath"), tries_again=True
    ),
    "code": BuiltIn(
        CodeConfig, _alone(code_reward), CODE_VERSION, tries_again=True, neutral=frozenset({"workers", "retries"})
    ),
    "reasoning-gym": BuiltIn(
        ReasoningGymConfig,
        _alone(reasoning_gym_reward),
        REASONING_GYM_VERSION,
        ("reasoning-gym", "sympy"),
        tries_again=True,
        neutral=frozenset({"workers", "retries"}),
    ),
    "format": BuiltIn(FormatConfig, _alone(format_reward), FORMAT_VERSION),
    "length": BuiltIn(LengthConfig, _alone(length_reward), LENGTH_VERSION),
    "repetition": BuiltIn(RepetitionConfig, _alone(repetition_reward), REPETITION_VERSION),
    "facts": BuiltIn(FactsConfig, _alone(facts_reward), FACTS_VERSION),
    "diversity": BuiltIn(DiversityConfig, _alone(diversity_reward), DIVERSITY_VERSION, whole_groups=True),
    "judge": BuiltIn(
        JudgeConfig,
        _alone(judge_reward),
        JUDGE_VERSION,
        neutral=frozenset({"concurrency", "requests_per_minute", "attempts", "backoff_seconds"}),
    ),
    "logprob": BuiltIn(
        LogprobConfig,
        logprob_reward,
        LOGPROB_VERSION,
        _MODEL_LIBRARIES,
        needs_reference=lambda options: options.model is None,
        content=lambda options: model_content(options.model),
    ),
    "reward_model": BuiltIn(
        RewardModelConfig,
        _alone(reward_model_reward),
        REWARD_MODEL_VERSION,
        _MODEL_LIBRARIES,
        content=lambda options: model_content(options.model),
    ),
}
"""The rewards that come with the house, by name: a new one is entered here."""


def build_reward(
    config: RewardConfig,
    *,
    reference: Path | None = None,
    past: State | None = None,
    correct: Callable[[RewardFunction], RewardFunction] | None = None,
) -> Reward:
    """The reward of a config. Cheap: worker processes start, and models load, when a sample first needs them.

    Args:
        reference: folder of the run's starting policy, for a reward for which :func:`needs_reference` is true.
        past: the state of smoothing after the round before; None: no past.
        correct: wraps the function whose verdict is the rollout's, before components are combined.

    Raises:
        UserError: for a name that is neither built in nor an importable function, or options that it does not take.
    """
    functions = {key: _function(part, config, where, reference) for key, where, part in _parts(config)}
    parts = {key: _retried(part, functions[key], config.retries) for key, _, part in _parts(config)}
    if correct is not None:
        decisive = config.verdict_component if config.components else ""
        parts[decisive] = correct(parts[decisive])

    def close() -> None:
        for function in functions.values():
            if isinstance(function, Reward):
                function.close()

    return Reward(composite(parts, config, past or {}) if config.components else parts[""], close)


def checks_aside(config: RewardConfig) -> bool:
    """Whether scoring neither takes a model's memory, nor runs the user's code, nor costs money.

    Such a reward may be asked at any time, and twice: it works in processes of its own, or hardly at all.
    """
    named = [part.reward for _, _, part in _parts(config)]
    return all(name in BUILT_IN and name != "judge" and "torch" not in BUILT_IN[name].libraries for name in named)


def needs_reference(config: RewardConfig) -> bool:
    """Whether a score depends on the policy that the run started from."""
    return any(
        BUILT_IN[part.reward].needs_reference(_options(part, config, where))
        for _, where, part in _parts(config)
        if part.reward in BUILT_IN
    )


def reward_fingerprint(config: RewardConfig) -> str:
    """A digest (64 hex digits) of all that may change a score: config, code, and the versions of the libraries behind.

    For a user's own function the code is the file of its module; what that module imports is not looked into.
    """
    return _digest([reward_settings(config), reward_code(config)])


def reward_code(config: RewardConfig) -> str:
    """The digest of what besides the config may change a score: code, versions, and the models that it names."""
    return _digest({key: _identity(part, config, where) for key, where, part in _parts(config)})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def reward_settings(config: RewardConfig) -> dict[str, Any]:
    """The part of the config that decides scores, as plain values for a fingerprint."""
    settings = config.model_dump(mode="json", exclude={"workers", "max_unchecked"})
    if config.components:
        settings["verdict_from"] = config.verdict_component  # the first one is not told by keys that get sorted
    for key, _, part in _parts(config):
        place = settings["components"][key] if config.components else settings
        place["options"] = {name: value for name, value in place["options"].items() if name not in _neutral(part)}
    return settings


def _parts(config: RewardConfig) -> list[tuple[str, str, ComponentConfig]]:
    """The rewards that a config names: key, where it stands in the config, and what it says."""
    if not config.components:
        return [("", "reward", ComponentConfig(reward=config.name, options=config.options))]
    return [(key, f"reward.components.{key}", part) for key, part in config.components.items()]


def _is_built_in(part: ComponentConfig, where: str) -> bool:
    """Raises UserError for a name that stands for nothing."""
    if part.reward in BUILT_IN:
        return True
    if ":" in part.reward or entry_point(part.reward) is not None:
        return False
    known = ", ".join(sorted(BUILT_IN))
    raise UserError(
        f"{_name_key(where)} {part.reward!r} is not known: use a built-in ({known}), an entry point of an installed "
        "package, or package.module:function."
    )


def _name_key(where: str) -> str:
    return "reward.name" if where == "reward" else f"{where}.reward"


def _function(part: ComponentConfig, config: RewardConfig, where: str, reference: Path | None) -> RewardFunction:
    if _is_built_in(part, where):
        return BUILT_IN[part.reward].build(_options(part, config, where), reference)
    return own_reward(part.reward, part.options, _name_key(where))


def _retried(part: ComponentConfig, function: RewardFunction, retries: int) -> RewardFunction:
    found = BUILT_IN.get(part.reward)
    if found is None:  # a user's own function: what it looks at is not known, so it gets whole groups
        return retried(function, retries, whole_groups=True)
    return retried(function, 0 if found.tries_again else retries, whole_groups=found.whole_groups)


def _neutral(part: ComponentConfig) -> frozenset[str]:
    return BUILT_IN[part.reward].neutral if part.reward in BUILT_IN else frozenset()


def _options(part: ComponentConfig, config: RewardConfig, where: str) -> BaseModel:
    model = BUILT_IN[part.reward].options
    if model is RewardConfig:
        if part.options:
            raise UserError(
                f"{where}.options: {part.reward} takes its settings from the section reward itself; move them."
            )
        return config
    try:
        return model.model_validate(part.options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([where, "options", *map(str, first["loc"])])
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(model.model_fields))
            raise UserError(f"unknown key '{key}'; {part.reward} knows: {known}.") from error
        message = first["msg"].removeprefix("Value error, ").rstrip(".")
        raise UserError(f"'{key}' is not usable: {message[:1].lower()}{message[1:]}.") from error


def _identity(part: ComponentConfig, config: RewardConfig, where: str) -> dict[str, Any]:
    """What besides the config may change one reward's scores."""
    if not _is_built_in(part, where):
        return {"code": own_code(part.reward, _name_key(where))}
    found, options = BUILT_IN[part.reward], _options(part, config, where)
    return {
        "version": found.version,
        "libraries": {name: importlib.metadata.version(name) for name in found.libraries},
        "content": found.content(options),
        # With what the defaults are: a later release may have others.
        "options": {} if found.options is RewardConfig else options.model_dump(mode="json", exclude=set(found.neutral)),
    }
