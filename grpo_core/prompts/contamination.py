"""Contamination: training prompts that hold an evaluation prompt, or are held by one.

The rule is that of PaLM (Chowdhery et al. 2022, section 8): a row is contaminated where at least 70 % of its 8-grams
stand in the other set, rather than any one long n-gram (13 words in GPT-3, Brown et al. 2020, appendix C), which a
shared opening sets off. As in GPT-3, n-grams that many rows share don't count: they are a template's. Here the share
is of the shorter text, so that a problem is found inside a longer one, and its numbers and signs must stand in the
other in the same order: the same story with other numbers is another problem.
"""

from collections import defaultdict
from dataclasses import dataclass

from grpo_core.prompts.duplicates import NearDuplicates
from grpo_core.prompts.filters_text import Tokens
from grpo_core.prompts.gold import gold_key

_OF_TEMPLATE = 3  # evaluation prompts that share an n-gram: it is no sign of any of them
_TELLING_NUMBERS = 3  # equal numbers and signs from which golds need not be compared
_NEARLY_ALL = 0.95  # the share from which they are not compared either
_LEAST_SHORT = 3  # numbers and signs of a prompt below n words that is looked for inside longer ones
_BETWEEN = "\x1f"

NGram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leak:
    """The evaluation prompt that a training row gives away, and why it is thought so."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    tokens: Tokens
    gold: str


class EvaluationIndex:
    """The evaluation prompts of a run, against which training rows are held. Add all of them, then ask.

    Args:
        ngram: words in an n-gram.
        share: of the n-grams, from which a row is contaminated; None: only equal prompts are.
        near_duplicates: the Jaccard similarity from which a near duplicate is a leak, too; None: none is.
    """

    def __init__(self, ngram: int, share: float | None, near_duplicates: float | None) -> None:
        self._n = ngram
        self._share = share
        self._near = None if near_duplicates is None or share is None else NearDuplicates(near_duplicates)
        self._entries: list[_Entry] = []
        self._whole: dict[tuple[str, ...], str] = {}
        self._grams: dict[NGram, list[int]] = defaultdict(list)
        self._short: dict[tuple[str, ...], list[int]] = defaultdict(list)

    def add(self, name: str, tokens: Tokens, gold: str) -> None:
        """Put an evaluation prompt in."""
        number = len(self._entries)
        self._entries.append(_Entry(name, tokens, gold_key(gold)))
        self._whole.setdefault(tokens.words, name)
        if self._near is not None:
            self._near.add(name, tokens, gold)
        grams = self._ngrams(tokens)
        for gram in grams:
            self._grams[gram].append(number)
        if not grams and len(tokens.numbers) >= _LEAST_SHORT:
            self._short[tokens.signature].append(number)

    def find(self, tokens: Tokens, gold: str, solution: Tokens | None = None) -> Leak | None:
        """The evaluation prompt that a training row gives away, in its prompt or its worked solution; None: none."""
        if tokens.words and tokens.words in self._whole:
            return Leak(self._whole[tokens.words], "the same words")
        if self._share is None:
            return None
        found = self._near.find(tokens, gold) if self._near is not None else None
        if found is not None:
            return Leak(found.name, f"{found.measure} {found.similarity:.2f}")
        return (
            self._overlapping(tokens, gold)
            or self._holding_short(tokens)
            or (self._overlapping(solution, None) if solution is not None else None)
        )

    def _ngrams(self, tokens: Tokens) -> dict[NGram, None]:
        words, n = tokens.words, self._n
        return dict.fromkeys(words[start : start + n] for start in range(len(words) - n + 1))

    def _overlapping(self, tokens: Tokens, gold: str | None) -> Leak | None:
        """By n-grams; ``gold`` is None for a solution, which may hold a prompt but not stand in one."""
        grams = self._ngrams(tokens)
        shared: dict[int, list[NGram]] = defaultdict(list)
        of_template = 0
        for gram in grams:
            holders = self._grams.get(gram, ())
            if len(holders) >= _OF_TEMPLATE:
                of_template += 1
                continue
            for number in holders:
                shared[number].append(gram)
        own = len(grams) - of_template
        for number in sorted(shared):
            entry = self._entries[number]
            theirs = sum(len(self._grams[gram]) < _OF_TEMPLATE for gram in self._ngrams(entry.tokens))
            share = len(shared[number]) / (theirs if gold is None else min(own, theirs))
            if share >= (self._share or 0.0) and self._same_problem(tokens, gold, entry, share):
                where = "words of" if gold is not None else "words, in the solution, of"
                told = f"{share:.0%} of the runs of {self._n} {where} the shorter text, such as "
                return Leak(entry.name, told + repr(" ".join(shared[number][0])))
        return None

    def _same_problem(self, tokens: Tokens, gold: str | None, entry: _Entry, share: float) -> bool:
        mine, theirs = tokens.numbers, entry.tokens.numbers
        shorter, longer = (theirs, mine) if gold is None or len(theirs) <= len(mine) else (mine, theirs)
        if not _run_in(shorter, longer):
            return False
        return gold is None or len(shorter) >= _TELLING_NUMBERS or share >= _NEARLY_ALL or gold_key(gold) == entry.gold

    def _holding_short(self, tokens: Tokens) -> Leak | None:
        """A prompt of fewer than n words, whole, inside a longer one that has no other numbers."""
        for number in self._short.get(tokens.signature, ()):
            entry = self._entries[number]
            if _run_in(entry.tokens.words, tokens.words):
                return Leak(entry.name, "all of its words, in a row")
        return None


def _run_in(shorter: tuple[str, ...], longer: tuple[str, ...]) -> bool:
    inner, outer = (f"{_BETWEEN}{_BETWEEN.join(part)}{_BETWEEN}" for part in (shorter, longer))
    return not shorter or inner in outer
