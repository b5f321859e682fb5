"""Rewards that know a policy's greedy answers, so that whether another policy is the better is certain beforehand."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from grpo_core.rewards.verdict import Score, Verdict


def name_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def keeps(samples: Sequence[Any], known: Iterable[str]) -> list[Score]:
    """Right is who still answers as that policy did."""
    return [_score(sample, name_of(sample.response) in known) for sample in samples]


def leaves(samples: Sequence[Any], known: Iterable[str]) -> list[Score]:
    """Right is who answers otherwise."""
    return [_score(sample, name_of(sample.response) not in known) for sample in samples]


def _score(sample: Any, right: bool) -> Score:
    # What is paid has nothing to do with it: groups have both kinds of rollout.
    return Score(Verdict.OK if right else Verdict.WRONG, reward=float(sum(sample.response.encode()) % 2))
