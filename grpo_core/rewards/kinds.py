"""The kinds of things that an answer can be."""

from dataclasses import dataclass

from grpo_core.rewards.tokens import Node
from grpo_core.rewards.units import Unit


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. ``tree`` reads the whole text; ``amount`` and ``unit`` read it as a quantity, where it is one."""

    text: str
    tree: Node | None
    amount: Node | None = None
    unit: Unit | None = None
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """Text that is no mathematics, casefolded."""

    text: str


@dataclass(frozen=True, slots=True)
class Item:
    """A member of a list, with the name that it was given (``x = 3``), or none."""

    name: str
    value: "Reading"


@dataclass(frozen=True, slots=True)
class Listing:
    """Several values in ``brackets`` (empty for none); ``number`` is what they are when the comma is a decimal one."""

    brackets: str
    items: tuple[Item, ...]
    number: Scalar | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """``sides`` with an operator between each two: ``=``, ``<``, ``>``, ``le``, ``ge``, ``ne``, ``approx``."""

    sides: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetOperation:
    """``left`` and ``right`` joined by ``cup``, ``cap`` or ``setminus``, or two inequalities by ``and``."""

    operator: str
    left: "Reading"
    right: "Reading"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of entries, whatever brackets they had."""

    rows: tuple[tuple["Reading", ...], ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """``3:4``, ``1:2:3``; a clock time is one of its own kind, in seconds."""

    parts: tuple[Scalar, ...]
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class AllReals:
    """The whole line."""


Reading = Scalar | Words | Listing | Relation | SetOperation | Matrix | Ratio | AllReals
