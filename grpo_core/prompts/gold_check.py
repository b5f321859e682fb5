r"""Golds, checked by the reward that will use them: each must be paid as an answer, and by its own worked solution.

A solution's answer is what it boxes last, with the boxes joined to that one by "and", "or" or a comma: a solution that
ends in ``\boxed{1}$ and $\boxed{9}`` has two answers, and a gold of ``9`` keeps one of them. Boxes further up are
steps on the way or the same answer found twice, and don't count. A solution without a box, ``####`` line or code says
nothing that can be told apart from its prose and isn't held against the gold.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core.prompts.gold import extract_gold
from grpo_core.rewards.boxes import content, filled_boxes
from grpo_core.rewards.code import fault_of_tests
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.score import BUILT_IN, build_reward, reward_code
from grpo_core.rewards.verdict import Sample, Score, Verdict

COMPARING = ("math", "code", "reasoning-gym")
"""The rewards that compare with a gold; what others think of one tells nothing about it."""

# x =, g(x) =, (x, y) =, AB =, but no prose ("so x ="); or some words up to a verb: the largest is
_NAME = r"(?!\s*=)(?:\\[A-Za-z]+|[A-Z]{1,4}(?![A-Za-z])|[a-z](?![A-Za-z])|[^=$.;A-Za-z\\]){1,40}(?:=|\\in(?![A-Za-z]))"
_LABEL = rf"(?:{_NAME}|(?:[A-Za-z]+\s+){{0,6}}(?:is|are|equals|be)(?![A-Za-z]))"
_WORD = r"(?:[Aa]nd|[Oo]r|as\s+well\s+as)(?![A-Za-z])"
_UNIT = r"(?:[A-Za-z]{1,12}\s+){0,2}?"
_JOINED = re.compile(rf"{_UNIT}(?:,|;|&|{_WORD})(?:\s|,|\\\\|{_WORD})*(?:{_LABEL})?\s*|\\\\\s*{_LABEL}\s*")
_NO_SIGN = re.compile(
    r"(?P<kept>\\\\)|\$|\\[()\[\],;:! ]|\\q?quad(?![A-Za-z])|\\(?:text|mbox|textrm|mathrm)\s*\{(?P<words>[^{}]*)\}"
    r"|\^\{?\\circ\}?|\\?%|&(?==)"
)
_LONGEST_BETWEEN = 120
_BASE = re.compile(r"(?<=\d)_\{?\d{1,2}\}?")
_AT_FAULT = re.compile(
    r"the gold|there (?:is|are) no|tests are|mode is|entry_point"
    r"|the tests (?:can't be compiled|never call)|the tests' check"
)


@dataclass(frozen=True, slots=True)
class GoldRow:
    """What a check needs of a row; ``source`` is the label of the one that it comes from."""

    prompt: str
    gold: str
    solution: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class GoldFinding:
    """What came out for a row.

    Attributes:
        reason: ``gold_unverified``, ``gold_disagrees`` or ``ambiguous_gold``; blank for a gold to keep.
        detail: why, in words.
        checked: whether the reward had its say; false where it compares with no gold, or the check itself failed.
        failed: the check itself failed: nothing is known, and the row is kept.
    """

    reason: str = ""
    detail: str = ""
    checked: bool = True
    failed: bool = False


class GoldCheck:
    """Checks golds by the rewards of a run. Two calls with equal rows find the same.

    Args:
        config: the run's section ``reward``.
        others: by the label of each source that has one, its own reward.
    """

    def __init__(self, config: RewardConfig, others: Mapping[str, RewardConfig] | None = None) -> None:
        self._config = config
        self._others = others or {}

    def fingerprint(self, sources: Iterable[str]) -> dict[str, str]:
        """What of the rewards of these sources may change a finding, as a digest for each whose reward compares.

        What a reward pays is not in it: more for a box leaves every finding as it is.
        """
        configs = {label: self._reward_of(label) for label in sources}
        return {label: reward_code(config) for label, config in configs.items() if config is not None}

    def check(self, rows: Sequence[GoldRow]) -> list[GoldFinding]:
        """One finding a row, in order.

        Raises:
            UserError: a reward can't be built, such as code where no sandbox can run.
        """
        findings = [GoldFinding(checked=False)] * len(rows)
        for source in dict.fromkeys(row.source for row in rows):
            places = [place for place, row in enumerate(rows) if row.source == source]
            config = self._reward_of(source)
            if config is not None:
                for place, found in zip(places, _checked([rows[place] for place in places], config), strict=True):
                    findings[place] = found
        return findings

    def same(self, pairs: Sequence[tuple[str, GoldRow]]) -> list[bool]:
        """Whether each gold answers the row beside it, too: by the row's reward where it compares, else by the text.

        A puzzle with several right answers has rows of one prompt whose golds differ and don't conflict.
        """
        equal = ["".join(gold.split()) == "".join(row.gold.split()) for gold, row in pairs]
        for source in dict.fromkeys(row.source for _, row in pairs):
            config = self._reward_of(source)
            if config is None or config.name == "code":
                continue
            places = [place for place, (_, row) in enumerate(pairs) if row.source == source and not equal[place]]
            rows = [pairs[place][1] for place in places]
            scores = _best(rows, [_as_response(pairs[place][0], config.name) for place in places], config)
            for place, score in zip(places, scores, strict=True):
                equal[place] = score is not None and score.verdict is Verdict.OK
        return equal

    def _reward_of(self, source: str) -> RewardConfig | None:
        """The one reward that compares with the gold; None where none does."""
        config = self._others.get(source, self._config)
        if config.components:
            part = config.components[config.verdict_component]
            config = RewardConfig(
                name=part.reward,
                options=part.options,
                retries=config.retries,
                timeout_seconds=config.timeout_seconds,
                workers=config.workers,
            )
        return config if config.name in COMPARING and config.name in BUILT_IN else None


def _checked(rows: Sequence[GoldRow], config: RewardConfig) -> list[GoldFinding]:
    is_code = config.name == "code"
    golds = _best(rows, [() if is_code else _as_response(row.gold, config.name) for row in rows], config)
    solved = _best(rows, [_code(row) if is_code else _solved(row, config.name) for row in rows], config)
    found = [_finding(*scores) for scores in zip(rows, golds, solved, strict=True)]
    return [_without_reference(row) or one if is_code else one for row, one in zip(rows, found, strict=True)]


def _without_reference(row: GoldRow) -> GoldFinding | None:
    """Of code without a reference only whether its tests can be read is known."""
    if row.solution and row.solution.strip():
        return None
    fault = fault_of_tests(Sample("", "", row.gold, extra=row.extra))
    return GoldFinding("gold_unverified", fault) if fault else None


def _best(rows: Sequence[GoldRow], responses: Sequence[tuple[str, ...]], config: RewardConfig) -> list[Score | None]:
    """The score of the first response of each row that is paid, else of its first; None for a row without any."""
    best: list[Score | None] = [None] * len(rows)
    for turn in range(max(map(len, responses), default=0)):
        open_ = [
            place
            for place, score in enumerate(best)
            if len(responses[place]) > turn and (score is None or score.verdict is not Verdict.OK)
        ]
        samples = [
            Sample(str(place), responses[place][turn], rows[place].gold, rows[place].prompt, extra=rows[place].extra)
            for place in open_
        ]
        for place, score in zip(open_, _scored(samples, config), strict=True):
            if best[place] is None or score.verdict is Verdict.OK:
                best[place] = score
    return best


def _finding(row: GoldRow, itself: Score | None, solution: Score | None) -> GoldFinding:
    for score, reason, told in (
        (itself, "gold_unverified", "given as an answer"),
        (solution, "gold_disagrees", "the worked solution, given as an answer,"),
    ):
        if score is None or score.verdict is Verdict.OK:
            continue
        why = f"{told} is {score.verdict.value}" + (f" ({score.detail})" if score.detail else "")
        if score.verdict.is_finding:
            if reason == "gold_disagrees" and score.extracted is not None:
                boxes = final_boxes(row.solution or "")
                if len(boxes) > 1:
                    return GoldFinding(
                        "ambiguous_gold", f"the solution ends in {len(boxes)} answers, {'; '.join(boxes)[:200]}"
                    )
                why += f": {score.extracted[:200]!r}"
            return GoldFinding(reason, why)
        if _AT_FAULT.match(score.detail):
            return GoldFinding("gold_unverified", why)
        return GoldFinding(detail=why, checked=False, failed=True)
    return GoldFinding(checked=itself is not None or solution is not None)


def final_boxes(solution: str) -> list[str]:
    """What a solution boxes as its answer: the last box, and those joined to it, each once.

    A number with its base and the same number without (``28`` or ``28_9``) are one.
    """
    boxes, _ = filled_boxes(solution)
    if not boxes:
        return []
    found = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        between = solution[box.end : found[0].start]
        if len(between) > _LONGEST_BETWEEN or not _JOINED.fullmatch(_plain_text(between)):
            break
        found.insert(0, box)
    contents = list(dict.fromkeys(content(solution, box) for box in found))
    bare = {_BASE.sub("", "".join(text.split())) for text in contents}
    return contents[-1:] if len(bare) == 1 else contents


def _plain_text(between: str) -> str:
    """What stands between two boxes, without the signs of formulas."""
    return _NO_SIGN.sub(lambda sign: sign["kept"] or f" {sign['words'] or ''} ", between).strip() + " "


def _solved(row: GoldRow, reward: str) -> tuple[str, ...]:
    """The answer of a worked solution as responses; none where it marks no answer."""
    if row.solution is None:
        return ()
    boxes = final_boxes(row.solution)
    if boxes and reward == "math":
        # A solution of several parts boxes the answer of each, with prose between: all of them are an answer, too.
        every = dict.fromkeys(content(row.solution, box) for box in filled_boxes(row.solution)[0])
        return tuple(" and ".join(map(_boxed, texts)) for texts in (boxes, every))
    marked = extract_gold(row.solution, "boxed") or extract_gold(row.solution, "gsm8k")
    return () if marked is None else _as_response(marked, reward)


def _code(row: GoldRow) -> tuple[str, ...]:
    """A reference solution, whole or as what completes the code of the prompt."""
    if not row.solution or not row.solution.strip():
        return ()
    if "```" in row.solution:
        return (row.solution,)
    return tuple(f"```python\n{code}\n```" for code in (row.solution, row.prompt + row.solution))


def _as_response(answer: str, reward: str) -> tuple[str, ...]:
    if reward == "math":
        return (_boxed(answer),)
    return (f"<answer>{answer}</answer>", _boxed(answer), answer)


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def _scored(samples: Sequence[Sample], config: RewardConfig) -> Sequence[Score]:
    if not samples:
        return []
    with build_reward(config) as reward:
        return reward(samples)
