"""Data sets known by name: where the Hugging Face hub has them, and how their rows are read."""

from dataclasses import dataclass
from typing import Literal

Adapter = Literal["plain", "gsm8k", "math", "humaneval", "mbpp"]

REASONING_GYM = "reasoning-gym:"

CODE_ADAPTERS = ("humaneval", "mbpp")


@dataclass(frozen=True, slots=True)
class Known:
    """A data set of the hub: its id, the subsets that are read one after the other, and the split of its rows."""

    hub_id: str
    subsets: tuple[str | None, ...]
    split: str = "train"


KNOWN: dict[Adapter, Known] = {
    "gsm8k": Known("openai/gsm8k", ("main",)),
    "math": Known(
        "EleutherAI/hendrycks_math",
        (
            "algebra",
            "counting_and_probability",
            "geometry",
            "intermediate_algebra",
            "number_theory",
            "prealgebra",
            "precalculus",
        ),
    ),
    "humaneval": Known("openai/openai_humaneval", (None,), "test"),
    "mbpp": Known("google-research-datasets/mbpp", ("sanitized",)),
}
"""By the name that a config gives; each has an adapter of that name."""


def adapter_of(source: str, adapter: Adapter | None) -> Adapter:
    """How the rows of a source are read: as the config says, else as a known data set's, by name or hub id."""
    if adapter is not None:
        return adapter
    return next((name for name, known in KNOWN.items() if source in (name, known.hub_id)), "plain")
