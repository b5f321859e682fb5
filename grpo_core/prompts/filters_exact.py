"""Rows that have the very same prompt: one of them stays where they agree on the answer, none where they don't."""

from collections.abc import Mapping

from grpo_core.prompts.filters_rows import Candidate, Rejections, shown
from grpo_core.prompts.gold_check import GoldCheck


def one_each(
    rows: list[Candidate], known: Mapping[str, tuple[str, str]], check: GoldCheck | None, rejections: Rejections
) -> list[Candidate]:
    """The first row of each prompt, but none of a prompt whose rows have different answers.

    Args:
        known: earlier prompts by id, with what a sentence calls each and its gold; they stay, whatever comes.
        check: tells whether two golds are one answer; None: by their text.
    """
    groups: dict[str, list[Candidate]] = {}
    for row in rows:
        groups.setdefault(row.prompt_id, []).append(row)
    agreed = _agreed(groups, known, check)
    kept = []
    for prompt_id, group in groups.items():
        first = known.get(prompt_id) or (group[0].name, group[0].gold)
        others = group if prompt_id in known else group[1:]
        if prompt_id in agreed:
            for row in others:
                rejections.add(row, "duplicate", f"same prompt as {first[0]}")
        else:
            for row in group:
                name, gold = first if row is not group[0] or prompt_id in known else _another(group)
                rejections.add(row, "conflicting_gold", f"same prompt as {name}, whose gold is {shown(gold)}")
        if prompt_id in agreed and prompt_id not in known:
            kept.append(group[0])
    return kept


def _agreed(
    groups: Mapping[str, list[Candidate]], known: Mapping[str, tuple[str, str]], check: GoldCheck | None
) -> set[str]:
    """The prompts all of whose golds are one answer."""
    pairs: list[tuple[str, Candidate]] = []
    for prompt_id, group in groups.items():
        first = known[prompt_id][1] if prompt_id in known else group[0].gold
        others = {row.gold: row for row in reversed(group) if row.gold != first}
        pairs += [(first, row) for row in others.values()]
    same = [False] * len(pairs) if check is None else check.same([(gold, row.to_check) for gold, row in pairs])
    return groups.keys() - {row.prompt_id for (_, row), equal in zip(pairs, same, strict=True) if not equal}


def _another(group: list[Candidate]) -> tuple[str, str]:
    """The first row of a prompt whose gold is not that of the first."""
    other = next(row for row in group if row.gold != group[0].gold)
    return other.name, other.gold
