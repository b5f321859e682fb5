"""Near duplicates: prompts that are the same problem in slightly other words.

Problems made from one template differ in little but their numbers, so two prompts are one problem only where their
numbers, formulas and decisive words are equal, one by one, and their golds. Of those the Jaccard similarity of words
and pairs of words decides; where many have the same numbers (none at all, say), MinHash (Broder 1997) with
locality-sensitive hashing (Indyk and Motwani 1998), by datasketch, finds which to compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from datasketch import MinHash, MinHashLSH

from grpo_core.prompts.filters_text import Tokens
from grpo_core.prompts.gold import gold_key

_PERMUTATIONS = 64
_SEED = 1
_CANDIDATES_ABOVE = 0.75  # of the threshold: what MinHash, an estimate, is asked for
_CONTAINED = 0.9
_LEAST_SIGNATURE = 2  # fewer numbers and signs don't tell that a longer text holds the same problem
_WITHOUT_NUMBERS = 0.9  # Jaccard similarity of prompts with less of a signature: a template is most of such a text
_ALL_COMPARED = 64  # prompts of one signature; above that MinHash says which to compare


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """The earlier prompt, and how near it is: Jaccard similarity, or the share of the shorter text in the longer."""

    name: str
    similarity: float
    measure: str


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    shingles: frozenset[str]
    signature: tuple[str, ...]
    gold: str
    capitals: frozenset[str]


class NearDuplicates:
    """An index of prompts, asked one by one in the order of the sources: the first of two near duplicates stays.

    Args:
        threshold: the Jaccard similarity from which two prompts are one.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._alike: dict[tuple[str, ...], _Alike] = {}

    def find(self, tokens: Tokens, gold: str) -> NearDuplicate | None:
        """The first prompt added so far that is the same problem; None where there is none."""
        alike = self._alike.get(tokens.signature)
        if alike is None:
            return None
        entry = _entry("", tokens, gold)
        found = (_compared(entry, earlier, self._threshold) for earlier in alike.candidates(entry))
        return next((near for near in found if near is not None), None)

    def add(self, name: str, tokens: Tokens, gold: str) -> None:
        """Put a prompt in, whatever it is near to."""
        if tokens.signature not in self._alike:
            self._alike[tokens.signature] = _Alike(self._threshold)
        self._alike[tokens.signature].add(_entry(name, tokens, gold))


class _Alike:
    """The prompts of one signature, of which alone two can be one problem."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._entries: list[_Entry] = []
        self._lsh: MinHashLSH | None = None

    def add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        if self._lsh is not None:
            self._lsh.insert(len(self._entries) - 1, _sketch(entry))
        elif len(self._entries) > _ALL_COMPARED:
            self._lsh = MinHashLSH(threshold=self._threshold * _CANDIDATES_ABOVE, num_perm=_PERMUTATIONS)
            for number, earlier in enumerate(self._entries):
                self._lsh.insert(number, _sketch(earlier))

    def candidates(self, entry: _Entry) -> list[_Entry]:
        """What to compare with, in the order in which it came."""
        if self._lsh is None:
            return self._entries
        return [self._entries[number] for number in sorted(self._lsh.query(_sketch(entry)))]


def _sketch(entry: _Entry) -> MinHash:
    sketch = MinHash(num_perm=_PERMUTATIONS, seed=_SEED)
    sketch.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in entry.shingles])
    return sketch


def _compared(entry: _Entry, earlier: _Entry, threshold: float) -> NearDuplicate | None:
    """Both of one signature."""
    # "the letters of the word PROOF" and "… RADII" are two problems.
    if entry.gold != earlier.gold or not entry.shingles or _differ_in_capitals(entry, earlier):
        return None
    shared = len(entry.shingles & earlier.shingles)
    jaccard = shared / len(entry.shingles | earlier.shingles)
    telling = len(entry.signature) >= _LEAST_SIGNATURE
    if jaccard >= (threshold if telling else max(threshold, _WITHOUT_NUMBERS)):
        return NearDuplicate(earlier.name, jaccard, "Jaccard similarity")
    contained = shared / max(1, min(len(entry.shingles), len(earlier.shingles)))
    if contained >= _CONTAINED and telling:
        return NearDuplicate(earlier.name, contained, "share of the shorter text")
    return None


def _entry(name: str, tokens: Tokens, gold: str) -> _Entry:
    return _Entry(name, _shingles(tokens.words), tokens.signature, gold_key(gold), tokens.capitals)


def _shingles(words: Sequence[str]) -> frozenset[str]:
    return frozenset(words) | {f"{first} {second}" for first, second in pairwise(words)}


def _differ_in_capitals(entry: _Entry, earlier: _Entry) -> bool:
    only_one = entry.shingles ^ earlier.shingles
    return not only_one.isdisjoint(entry.capitals) and not only_one.isdisjoint(earlier.capitals)
