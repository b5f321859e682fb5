"""What people's labels change in scoring: golds of prompts, and verdicts of equal answers to a prompt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from grpo_core.labels.config import LabelsConfig
from grpo_core.labels.label import Label
from grpo_core.rewards.config import RewardConfig
from grpo_core.rewards.extract import final_answer
from grpo_core.rewards.math_reward import payment
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict

BY_A_PERSON = "said a person: "  # begins what a label changed in a row's ``detail``
_LONGEST_GOLD = 80

_Answer = tuple[str, bool, str]  # prompt, whether an answer was extracted, that answer or else the whole text


@dataclass(frozen=True, slots=True)
class Corrections:
    """The last word on each prompt's gold and on each answer's verdict.

    Attributes:
        conflicts: answers and prompts on which people disagree; the latest counts.
    """

    verdicts: dict[_Answer, Label]
    golds: dict[str, Label]
    conflicts: int

    def verdict_on(self, prompt_id: str, extracted: str | None, text: str) -> Label | None:
        """The label that decides the verdict of a response; None when nobody spoke of such an answer."""
        return self.verdicts.get(_answer(prompt_id, extracted, text))

    def __bool__(self) -> bool:
        return bool(self.verdicts or self.golds)


def corrections(labels: Iterable[Label]) -> Corrections:
    """Gather labels of the kinds ``verdict`` and ``gold``; the others are passed over."""
    verdicts: dict[_Answer, Label] = {}
    golds: dict[str, Label] = {}
    said: dict[tuple[str, ...] | _Answer, set[str]] = {}
    for label in sorted(labels, key=lambda one: (one.at, one.assessment_id)):
        if label.kind == "verdict":
            answer = _answer(label.prompt_id, label.extracted, label.completion)
            verdicts[answer] = label
            said.setdefault(answer, set()).add(label.value)
        elif label.kind == "gold":
            golds[label.prompt_id] = label
            said.setdefault((label.prompt_id,), set()).add(label.value)
    return Corrections(verdicts, golds, sum(len(values) > 1 for values in said.values()))


def _answer(prompt_id: str, extracted: str | None, text: str) -> _Answer:
    return prompt_id, extracted is not None, text if extracted is None else extracted


def corrected(
    function: RewardFunction,
    found: Corrections,
    golds_before: dict[str, str],
    reward: RewardConfig,
    labels: LabelsConfig,
) -> RewardFunction:
    """The reward that gives the verdict, with people's verdicts in the place of its own.

    It is as if the check itself had said so: ``math`` pays ``correct`` or nothing and keeps the box's bonus, any other
    pays ``labels.pays_ok`` or ``labels.pays_wrong``. Whatever is made of its value afterwards (weights, smoothing,
    normalising) follows, and other components stay as they are. A label that agrees with the check changes nothing.

    Args:
        golds_before: by prompt, the golds that people replaced; the samples carry the new ones already.
    """
    kind = reward.components[reward.verdict_component].reward if reward.components else reward.name

    def score(samples: Sequence[Sample]) -> list[Score]:
        return [_rule(sample, one) for sample, one in zip(samples, function(samples), strict=True)]

    def _rule(sample: Sample, before: Score) -> Score:
        prompt_id = sample.group.partition("/")[2]
        after = before
        label = found.verdict_on(prompt_id, before.extracted, sample.response)
        if label is not None and label.value != before.verdict:
            verdict = Verdict(label.value)
            after = _paid(sample, before, verdict, kind, reward, labels)
            after = _told(after, f"{verdict} by {label.who}, the check: {before.verdict}")
        if prompt_id in golds_before:
            gold = golds_before[prompt_id]
            gold = gold if len(gold) <= _LONGEST_GOLD else f"{gold[:_LONGEST_GOLD]}…"
            after = _told(after, f"gold by {found.golds[prompt_id].who}, before: {gold}")
        return after

    return score


def _paid(
    sample: Sample, before: Score, verdict: Verdict, kind: str, reward: RewardConfig, labels: LabelsConfig
) -> Score:
    if kind != "math":
        return replace(before, verdict=verdict, reward=labels.pays_ok if verdict is Verdict.OK else labels.pays_wrong)
    answer = final_answer(sample.response)
    components = payment(reward, verdict, answer is not None and answer.boxed)
    total = None if components is None else sum(components.values())
    return replace(before, verdict=verdict, reward=total, components=components or {})


def _told(score: Score, what: str) -> Score:
    return replace(score, detail="; ".join(part for part in (score.detail, BY_A_PERSON + what) if part))
