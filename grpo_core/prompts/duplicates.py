"""Near duplicates: prompts that are the same problem in slightly other words.

MinHash (Broder 1997) and locality-sensitive hashing (Indyk and Motwani 1998), by datasketch, find candidates; the
Jaccard similarity of the real sets decides. Problems made from one template differ in little but their numbers, so two
prompts are one problem only where their numbers, formulas and decisive words are equal, one by one, and their golds.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from datasketch import MinHash, MinHashLSH

from grpo_core.prompts.filters_text import Tokens

_PERMUTATIONS = 64
_SEED = 1
_CANDIDATES_ABOVE = 0.75  # of the threshold: what MinHash, an estimate, is asked for
_CONTAINED = 0.9
_LEAST_SIGNATURE = 2  # fewer numbers and signs don't tell that a longer text holds the same problem
_MOST_CANDIDATES = 200


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
        self._lsh = MinHashLSH(threshold=threshold * _CANDIDATES_ABOVE, num_perm=_PERMUTATIONS)
        self._empty = MinHash(num_perm=_PERMUTATIONS, seed=_SEED)
        self._entries: list[_Entry] = []
        self._by_signature: dict[tuple[str, ...], list[int]] = defaultdict(list)

    def find(self, tokens: Tokens, gold: str) -> NearDuplicate | None:
        """The first prompt added so far that is the same problem; None where there is none."""
        entry = _entry("", tokens, gold)
        return self._find(entry, self._sketch(entry.shingles))

    def add(self, name: str, tokens: Tokens, gold: str) -> None:
        """Put a prompt in, whatever it is near to."""
        entry = _entry(name, tokens, gold)
        self._add(entry, self._sketch(entry.shingles))

    def find_or_add(self, name: str, tokens: Tokens, gold: str) -> NearDuplicate | None:
        """As :meth:`find`; a prompt that is near to none is put in."""
        entry = _entry(name, tokens, gold)
        sketch = self._sketch(entry.shingles)
        found = self._find(entry, sketch)
        if found is None:
            self._add(entry, sketch)
        return found

    def _sketch(self, shingles: frozenset[str]) -> MinHash:
        sketch = self._empty.copy()
        sketch.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in shingles])
        return sketch

    def _add(self, entry: _Entry, sketch: MinHash) -> None:
        number = len(self._entries)
        self._entries.append(entry)
        self._lsh.insert(number, sketch, check_duplication=False)
        self._by_signature[entry.signature].append(number)

    def _find(self, entry: _Entry, sketch: MinHash) -> NearDuplicate | None:
        candidates = set(self._lsh.query(sketch))
        if len(entry.signature) >= _LEAST_SIGNATURE:
            candidates.update(self._by_signature.get(entry.signature, [])[:_MOST_CANDIDATES])
        for number in sorted(candidates):
            found = self._compared(entry, self._entries[number])
            if found is not None:
                return found
        return None

    def _compared(self, entry: _Entry, earlier: _Entry) -> NearDuplicate | None:
        if entry.signature != earlier.signature or entry.gold != earlier.gold:
            return None
        # "the letters of the word PROOF" and "… RADII" are two problems.
        if not entry.shingles or not earlier.shingles or _differ_in_capitals(entry, earlier):
            return None
        shared = len(entry.shingles & earlier.shingles)
        jaccard = shared / len(entry.shingles | earlier.shingles)
        if jaccard >= self._threshold:
            return NearDuplicate(earlier.name, jaccard, "Jaccard similarity")
        contained = shared / min(len(entry.shingles), len(earlier.shingles))
        if contained >= _CONTAINED and len(entry.signature) >= _LEAST_SIGNATURE:
            return NearDuplicate(earlier.name, contained, "share of the shorter text")
        return None


def _entry(name: str, tokens: Tokens, gold: str) -> _Entry:
    return _Entry(name, _shingles(tokens.words), tokens.signature, "".join(gold.split()).casefold(), tokens.capitals)


def _shingles(words: Sequence[str]) -> frozenset[str]:
    return frozenset(words) | {f"{first} {second}" for first, second in pairwise(words)}


def _differ_in_capitals(entry: _Entry, earlier: _Entry) -> bool:
    only_one = entry.shingles ^ earlier.shingles
    return not only_one.isdisjoint(entry.capitals) and not only_one.isdisjoint(earlier.capitals)
