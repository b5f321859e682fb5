"""Prompts that are made: sums of two whole numbers, and the data sets of reasoning-gym."""

import difflib
import importlib.metadata
from collections.abc import Iterator, Mapping

from grpo_core.errors import NotHere, UserError
from grpo_core.prompts.config import REASONING_GYM_ROWS, AdditionsConfig, SourceKeys
from grpo_core.prompts.gym_entries import gym_entries
from grpo_core.prompts.known import REASONING_GYM
from grpo_core.prompts.rows import SourceRow
from grpo_core.seeding import hash64

ADDITIONS_VERSION = 1
"""Raised when the same seed would make other sums."""


def additions(config: AdditionsConfig, seed: int) -> Iterator[Mapping[str, str]]:
    """The first ``count`` of all ordered pairs in a shuffle by ``seed``; more of them extend fewer of them."""
    width = config.high - config.low + 1
    # Fisher-Yates over the numbers of the pairs, holding only the places that a swap has changed.
    moved: dict[int, int] = {}
    for place in range(config.count):
        chosen = place + hash64(seed, "additions", place) % (config.pairs - place)
        number = moved.get(chosen, chosen)
        moved[chosen] = moved.get(place, place)
        a, b = number // width + config.low, number % width + config.low
        yield {"question": f"What is {a} + {b if b >= 0 else f'({b})'}?", "answer": str(a + b)}


def reasoning_gym_seed(seed: int) -> int:
    """The seed of a reasoning-gym data set in a run of that seed."""
    return hash64(seed, "reasoning-gym") % 2**31


def reasoning_gym_version(source: str) -> str:
    """The installed release. Raises NotHere where there is none, naming the source that needs it."""
    try:
        return importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError as error:
        raise NotHere(f"data.source '{source}' needs reasoning-gym; pip install reasoning-gym") from error


def reasoning_gym(config: SourceKeys, seed: int) -> Iterator[SourceRow]:
    """Entries of a reasoning-gym data set (Stojanovski et al. 2025, arXiv:2505.24760).

    ``extra`` holds what its scorer needs: ``dataset``, its ``options``, and the ``entry`` as a Python literal, since
    JSON would make lists of its tuples, and scorers compare them.

    Raises:
        UserError: reasoning-gym is not installed, has no such set, or the set does not take ``options``.
    """
    reasoning_gym_version(config.source)
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    name = config.source.removeprefix(REASONING_GYM)
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=5) or sorted(DATASETS)[:5]
        raise UserError(
            f"data.source: reasoning-gym has no '{name}' among its {len(DATASETS)} data sets; did you mean "
            f"{', '.join(near)}?"
        )
    if name == "composite":
        raise UserError("data.source: reasoning-gym's composite is a mix; name each of its sets in data.sources.")
    fields = sorted(set(DATASETS[name][1].__dataclass_fields__) - {"seed", "size"})
    for key in config.options:
        if key not in fields:
            raise UserError(
                f"data.options: reasoning-gym's '{name}' has no option '{key}'; it knows {', '.join(fields) or 'none'}"
                f"{', data.limit for the size, and the run for the seed' if key in ('seed', 'size') else ''}."
            )
    size = config.limit or REASONING_GYM_ROWS
    try:
        reasoning_gym.create_dataset(name, size=size, seed=reasoning_gym_seed(seed), **config.options)
    except (TypeError, ValueError, AssertionError, OSError) as error:
        mend = "change data.options" if config.options else "take another of its sets"
        raise UserError(f"data.source: reasoning-gym can't make '{name}' ({error}); {mend}.") from error
    for index, made in enumerate(gym_entries(name, size, reasoning_gym_seed(seed), config.options)):
        extra = {"dataset": name, "options": config.options, "entry": made["entry"]}
        yield SourceRow(index, made["question"], made["gold"], None, extra)
