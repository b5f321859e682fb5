r"""Is one reading the same answer as another? ``True``, ``False``, or ``None`` where this cannot be told here.

Conventions, each as most labelled rows and common graders have it:

- A gold ``x = 5`` is met by ``5``, and a gold ``5`` by ``x = 5``; of a chain the last side counts, of an approximation
  each side that agrees with the last to a hundredth. A gold that defines nothing (``2x + z = 1``) is not met by its
  right side.
- Equations are one up to a constant factor, inequalities up to a positive one, or turned round by a negative one.
- ``10%`` is met by ``10`` and by ``0.1``, and so the other way round; two percentages are compared as they are.
- A decimal stands for itself. It may stand for a value that it cannot write out when it has 12 digits in the answer or
  6 in the gold, all right: ``0.33`` and ``0.33333333`` are not ``1/3``, and a gold of ``0.6666667`` is met by ``2/3``.
- A pair ``(1, 2)`` is neither the set ``{1, 2}`` nor ``(2, 1)``; a bare ``1, 2`` is met by both, by a pair in its
  order.
- An inequality is the interval that it describes; ends count.
"""

from collections.abc import Sequence
from fractions import Fraction

from grpo_core.rewards.decimals import literal_of, stands_for
from grpo_core.rewards.evaluate import ratio, real_value, same_value
from grpo_core.rewards.exact import InexactError, UndefinedError
from grpo_core.rewards.expression import parse, symbols
from grpo_core.rewards.kinds import Item, Listing, Matrix, Ratio, Reading, Relation, Scalar, SetOperation, Words
from grpo_core.rewards.ratios import all_of, same_ratios
from grpo_core.rewards.realsets import same_set
from grpo_core.rewards.solutions import FLIPPED, real_set
from grpo_core.rewards.structure import assigned, read
from grpo_core.rewards.tokens import Node, TooLargeError, UnreadableError
from grpo_core.rewards.units import conversion

_ANSWER_DIGITS = 12
_GOLD_DIGITS = 6


def same(gold: Reading, answer: Reading) -> bool | None:
    """Whether ``answer`` is ``gold``.

    Raises:
        TooLargeError: a value is beyond any real answer.
    """
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _same_relations(gold, answer)
    if isinstance(gold, Scalar) and isinstance(answer, Scalar):
        return _same_scalars(gold, answer)
    if isinstance(gold, Words) or isinstance(answer, Words):
        return isinstance(gold, Words) and isinstance(answer, Words) and _plain_words(gold) == _plain_words(answer)
    if isinstance(gold, Ratio) or isinstance(answer, Ratio):
        return same_ratios(gold, answer)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _same_matrices(gold, answer)
    for one, other in ((gold, answer), (answer, gold)):
        if isinstance(one, Listing) and isinstance(other, Scalar):
            number = one.number
            if number is not None:
                return _same_scalars(number, other) if one is gold else _same_scalars(other, number)
            pairs = [(item.value, other) if one is gold else (other, item.value) for item in one.items[:50]]
            return (
                bool(pairs)
                and not one.brackets.strip("{}")
                and len(one.items) < 50
                and all_of(same(*pair) for pair in pairs)
            )
    if isinstance(gold, Listing) and isinstance(answer, Listing):
        listed = _same_listings(gold, answer)
        if listed or not (_is_set(gold) and _is_set(answer)):
            return listed
    return _same_sets(gold, answer)


def _plain_words(words: Words) -> str:
    text = "".join(character for character in words.text if character.isalnum() or character == " ")
    return " ".join(word for word in text.split() if word not in ("the", "a", "an"))


def _same_scalars(gold: Scalar, answer: Scalar) -> bool | None:
    if gold.percent or answer.percent:
        first, second = gold.amount or gold.tree, answer.amount or answer.tree
        if first is None or second is None:
            return None
        plain = _same_trees(first, second)
        if plain or (gold.percent and answer.percent):
            return plain
        hundredth = Node("number", value=Fraction(1, 100))
        scaled = [
            Node("multiply", (tree, hundredth)) if side.percent else tree
            for tree, side in ((first, gold), (second, answer))
        ]
        return _same_trees(*scaled)
    outcome: bool | None = None
    if gold.tree is not None and answer.tree is not None:
        outcome = _same_trees(gold.tree, answer.tree)
        if outcome:
            return True
    first = gold.amount if gold.amount is not None and not (_may_be_symbol(gold) and answer.unit is None) else gold.tree
    second = answer.amount if answer.amount is not None else answer.tree
    if first is None or second is None or (first is gold.tree and second is answer.tree):
        return outcome
    factor = conversion(gold.unit, answer.unit)
    if factor is None:
        return False
    quantities = _same_trees(first, second if factor == 1 else Node("multiply", (second, Node("number", value=factor))))
    if not quantities and gold.unit is not None and gold.unit.dimension == "angle" and answer.unit is None:
        quantities = "pi" in _constants(second) and _same_trees(first, _in_degrees(second))
    if not quantities and answer.unit is not None and answer.unit.dimension == "angle" and gold.unit is None:
        quantities = "pi" in _constants(first) and _same_trees(_in_degrees(first), second)
    return quantities


def _in_degrees(angle: Node) -> Node:
    return Node(
        "multiply", (angle, Node("number", value=Fraction(180)), Node("inverse", (Node("constant", name="pi"),)))
    )


def _may_be_symbol(gold: Scalar) -> bool:
    """A single letter right behind the number (``3m``) may as well be a variable of the question."""
    return (
        len(gold.text) > 1
        and gold.text[-1].isalpha()
        and gold.text[-1].isascii()
        and (gold.text[-2].isdigit() or gold.text[-2] in ")}")
    )


def _constants(tree: Node) -> set[str]:
    found = {tree.name} if tree.kind == "constant" else set()
    for part in tree.parts:
        found |= _constants(part)
    return found


def _same_trees(gold: Node, answer: Node) -> bool | None:
    outcome = same_value(gold, answer)
    if outcome is False and not symbols(gold) and not symbols(answer):
        for written, other, digits in ((gold, answer, _GOLD_DIGITS), (answer, gold, _ANSWER_DIGITS)):
            literal = literal_of(written)
            if literal is not None and literal.digits >= digits and stands_for(literal, other):
                return True
    return outcome


def _same_matrices(gold: Reading, answer: Reading) -> bool | None:
    if isinstance(gold, Listing) and isinstance(answer, Matrix):
        gold = _matrix_of(gold, answer)
    elif isinstance(answer, Listing) and isinstance(gold, Matrix):
        answer = _matrix_of(answer, gold)
    if not isinstance(gold, Matrix) or not isinstance(answer, Matrix):
        return None
    if [len(row) for row in gold.rows] != [len(row) for row in answer.rows]:
        return False
    pairs = [pair for rows in zip(gold.rows, answer.rows, strict=True) for pair in zip(*rows, strict=True)]
    return all_of(same(one, two) for one, two in pairs)


def _matrix_of(listing: Listing, shape: Matrix) -> Reading:
    """A vector or a list of rows (``(1, 2)``, ``[[1, 2], [3, 4]]``) as the matrix that it may stand for."""
    values = tuple(item.value for item in listing.items)
    if listing.brackets not in ("()", "[]") or any(item.name for item in listing.items):
        return listing
    rows = [value for value in values if isinstance(value, Listing) and value.brackets in ("()", "[]")]
    if rows and len(rows) == len(values):
        return Matrix(tuple(tuple(item.value for item in row.items) for row in rows))
    return Matrix((values,)) if len(shape.rows) == 1 else Matrix(tuple((value,) for value in values))


def _same_listings(gold: Listing, answer: Listing) -> bool | None:
    ours, theirs = gold.brackets, answer.brackets
    if gold.number is not None and answer.number is not None and _same_scalars(gold.number, answer.number):
        return True
    if ours and theirs and ours != theirs:
        return False
    names = [tuple(item.name for item in side.items) for side in (gold, answer)]
    if _distinct(names[0]) and _distinct(names[1]) and set(names[0]) == set(names[1]):
        values = {item.name: item.value for item in answer.items}
        return all_of(same(item.value, values[item.name]) for item in gold.items)
    dotted = any(isinstance(item.value, Words) and "ldots" in item.value.text for item in gold.items)
    ordered = dotted or ours in _ORDERED or theirs in _ORDERED or (_distinct(names[0]) and not _one_family(names[0]))
    if ordered:
        if "{" in ours + theirs or len(gold.items) != len(answer.items):
            return False
        return all_of(same(one.value, two.value) for one, two in zip(gold.items, answer.items, strict=True))
    return _same_members(gold.items, answer.items)


_ORDERED = ("()", "[]", "[)", "(]")


def _distinct(names: Sequence[str]) -> bool:
    return len(names) > 1 and all(names) and len(set(names)) == len(names)


def _one_family(names: Sequence[str]) -> bool:
    r"""``x_1, x_2``: roots of one unknown, in no order."""
    return len({name.split("_")[0] for name in names}) == 1


def _same_members(gold: Sequence[Item], answer: Sequence[Item]) -> bool | None:
    """Whether both hold the same values, in any order, however often."""
    if abs(len(gold) - len(answer)) > 20 or len(gold) * len(answer) > 2_500:
        return False
    unsure = False
    found = [False] * len(answer)
    for item in gold:
        matched = False
        for place, other in enumerate(answer):
            outcome = same(item.value, other.value)
            unsure = unsure or outcome is None
            if outcome:
                found[place] = matched = True
        if not matched:
            return None if unsure else False
    return True if all(found) else None if unsure else False


def _same_relations(gold: Reading, answer: Reading) -> bool | None:
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _same_two_relations(gold, answer)
    if isinstance(gold, Relation):
        named = assigned(gold)
        if named is not None:
            return same(read(named[1]), answer)
        if set(gold.operators) <= {"=", "approx"}:
            return False
        return _same_sets(gold, answer)
    assert isinstance(answer, Relation)
    if set(answer.operators) <= {"=", "approx", "equiv"}:
        return any(same(gold, side) for side in _values(answer))
    return _same_sets(gold, answer)


def _values(relation: Relation) -> list[Reading]:
    """The sides that may count as the value: the last, and those that an ``approx`` sets beside it and that agree."""
    texts = [relation.sides[-1]]
    if (
        set(relation.operators) == {"="}
        and len(relation.sides) == 2
        and assigned(Relation(relation.sides[::-1], ("=",)))
    ):
        texts = [relation.sides[0]] if assigned(relation) is None else texts
    for place in range(len(relation.operators) - 1, -1, -1):
        if relation.operators[place] != "approx":
            break
        if _near(relation.sides[place], relation.sides[-1]):
            texts.append(relation.sides[place])
    readings = []
    for text in texts:
        try:
            readings.append(read(text))
        except UnreadableError:
            continue
    return readings


def _near(first: str, second: str) -> bool:
    try:
        one, two = (real_value(parse(text)) for text in (first, second))
    except (UnreadableError, InexactError, UndefinedError, TooLargeError):
        return False
    return bool(abs(one - two) <= max(abs(one), abs(two)) / 100)


def _same_two_relations(gold: Relation, answer: Relation) -> bool | None:
    ours, theirs = assigned(gold), assigned(answer)
    if ours is not None and theirs is not None:
        values = same(read(ours[1]), read(theirs[1]))
        if ours[0] == theirs[0]:
            return values
        if values and _has_symbols(ours[1]) and not (set(ours[0]) & set("+-*")):
            return True  # y = 2x + 3 and f(x) = 2x + 3
    pairs = [_steps(relation) for relation in (gold, answer)]
    if pairs[0] is None or pairs[1] is None:
        return None
    if len(pairs[0]) != len(pairs[1]):
        return _same_sets(gold, answer)
    left = list(pairs[1])
    for step in pairs[0]:
        match = next((other for other in left if _same_step(step, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _has_symbols(text: str) -> bool:
    try:
        return bool(symbols(parse(text)))
    except UnreadableError:
        return True


def _steps(relation: Relation) -> list[tuple[Node, str]] | None:
    """Each two neighbouring sides as ``(left - right, operator)``."""
    steps = []
    for place, operator in enumerate(relation.operators):
        if operator not in FLIPPED:
            return None
        try:
            left, right = (parse(side) for side in relation.sides[place : place + 2])
        except UnreadableError:
            return None
        steps.append((Node("add", (left, Node("negate", (right,)))), operator))
    return steps


def _same_step(gold: tuple[Node, str], answer: tuple[Node, str]) -> bool:
    factor = ratio(gold[0], answer[0])
    if factor is None:
        return False
    return answer[1] == (gold[1] if factor > 0 else FLIPPED[gold[1]])


def _is_set(reading: Reading) -> bool:
    return not isinstance(reading, Listing) or reading.brackets in ("{}", "[)", "(]", "()", "[]")


def _same_sets(gold: Reading, answer: Reading) -> bool | None:
    try:
        return same_set(real_set(gold), real_set(answer))
    except (UnreadableError, InexactError, UndefinedError):
        pass
    if isinstance(gold, SetOperation) and isinstance(answer, SetOperation):
        turned = SetOperation(answer.operator, answer.right, answer.left)
        return True if gold == answer or (gold == turned and gold.operator != "setminus") else None
    kinds = (type(gold), type(answer))
    return None if SetOperation in kinds and Scalar not in kinds else False
