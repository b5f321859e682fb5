"""Which sources of a mix have a reward of their own."""

from typing import Any

from grpo_core.errors import UserError
from grpo_core.prompts.config import DataConfig, SourceConfig
from grpo_core.prompts.known import CODE_ADAPTERS, REASONING_GYM
from grpo_core.rewards.score import RewardConfig, build_reward

# Each of these reads rows of one kind only; any other reward can say something about every row.
_CHECKERS = {"math", "code", "reasoning-gym"}


def reward_of(source: SourceConfig, own: RewardConfig) -> RewardConfig | None:
    """The reward of a source's rows; None for the run's own.

    A source's ``reward`` wins. Where it has none, the run's own scores its rows, unless that is a checker of another
    kind of row: then rows of humaneval and mbpp get ``code``, and those of reasoning-gym ``reasoning-gym``. What stands
    in the section ``reward`` itself (retries, what math pays) holds for all of them.
    """
    used = {part.reward for part in own.components.values()} or {own.name}
    name = source.reward
    if name is None:
        name = _natural(source)
        if name is None or name in used or not used & _CHECKERS:
            return None
    elif not own.components and name == own.name and not source.reward_options:
        return None
    alone: dict[str, Any] = {"components": {}, "combine": "sum", "verdict_from": None, "smoothing": 0.0}
    return own.model_copy(update={**alone, "name": name, "options": source.reward_options})


def source_rewards(data: DataConfig, own: RewardConfig) -> dict[str, RewardConfig]:
    """By the label of each source whose rows the run's own reward does not score, the reward that does."""
    found = {source.label: reward_of(source, own) for source in data.places.values()}
    return {label: reward for label, reward in found.items() if reward is not None}


def check_source_reward(where: str, source: SourceConfig, own: RewardConfig) -> None:
    """Build a source's reward, if it has one.

    Args:
        where: the place of the source's keys in the config, such as ``data.sources.2``.

    Raises:
        UserError: there is no such reward, or it does not take these options; the sentence names the source's key.
    """
    reward = reward_of(source, own)
    if reward is None:
        return
    try:
        build_reward(reward)
    except UserError as error:
        text = str(error).replace("reward.options", f"{where}.reward_options")
        raise type(error)(text.replace("reward.name", f"{where}.reward")) from error


def _natural(source: SourceConfig) -> str | None:
    if source.source.startswith(REASONING_GYM):
        return "reasoning-gym"
    return "code" if source.reads_as in CODE_ADAPTERS else None
