"""Which prompts a round takes: epochs without replacement, by difficulty, in an order, and by the weights of a mix."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from grpo_core.errors import UserError
from grpo_core.prompts.config import DataConfig
from grpo_core.prompts.difficulty import Difficulty
from grpo_core.schemas import PLAN
from grpo_core.seeding import hash64

EPOCH, RETRY, FILLER = "epoch", "retry", "filler"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A training prompt that may be taken: its id, its source's label, and what a curriculum by column sorts by."""

    prompt_id: str
    source: str = ""
    order: float | None = None


@dataclass(frozen=True, slots=True)
class _Pick:
    prompt_id: str
    epoch: int
    turn: str
    reserve: bool = False


def plan_round(
    candidates: Sequence[Candidate],
    known: Mapping[str, Difficulty],
    config: DataConfig,
    *,
    round_number: int,
    seed: int,
) -> pa.Table:
    """The prompts of one round, the same for equal arguments in any order.

    An epoch takes each active prompt once at most: those that it has not had yet, in the order of the curriculum
    (shuffled by ``hash64(seed, "plan", epoch, prompt_id)``). When fewer are left than a round needs they sit that epoch
    out and the next one begins, so that no round straddles two. A share of the round goes to retired prompts that wait
    longest; where active ones are too few for a round, retired ones fill it up.

    Where the sources have weights, each has its own epochs, and a round takes ``floor`` or ``ceil`` of its share by
    systematic sampling, so that over the rounds the shares are exact.

    Args:
        candidates: the training prompts, all different.
        known: what is known of those taken before, by id.
        round_number: from 1.
        seed: the run's seed.

    Returns:
        Rows of ``schemas.PLAN``: first ``config.prompts_per_round`` that are taken for sure, then the reserve for
        dynamic sampling. ``position`` counts the prompts that the run has taken, from 0.

    Raises:
        UserError: a round takes more prompts than there are.
        ValueError: two ids are equal, or the round is below 1.
    """
    if round_number < 1:
        raise ValueError(f"round_number {round_number} must be at least 1")
    if len({one.prompt_id for one in candidates}) != len(candidates):
        raise ValueError("prompt ids must all be different")
    wanted = config.prompts_per_round
    if len(candidates) < wanted:
        raise UserError(
            f"data.prompts_per_round is {wanted}, but only {len(candidates)} training prompts are left after filtering "
            "and holding out data.eval_size; lower it or bring more data."
        )
    weights = {source.label: source.weight for source in config.sources if source.weight is not None}
    lanes: dict[str, list[Candidate]] = {}
    for one in candidates:
        lanes.setdefault(one.source if weights else "", []).append(one)
    sizes = {label: len(lane) for label, lane in lanes.items()}
    offset = hash64(seed, "mix", round_number) / 2**64
    shares = _capped({label: weights.get(label, 1.0) for label in sorted(lanes)}, sizes, wanted)
    quotas = _systematic(shares, sizes, wanted, offset)
    extra = _systematic(shares, sizes, math.ceil(config.dynamic_sampling.max_extra * wanted), offset)
    picks: list[_Pick] = []
    for label in sorted(lanes):
        lane = _Lane(lanes[label], known, config, round_number, seed)
        picks += lane.take(quotas[label], shares[label], extra[label])
    picks.sort(key=lambda pick: (pick.reserve, hash64(seed, "plan", pick.epoch, pick.prompt_id), pick.prompt_id))
    first = sum(row.visits for row in known.values())
    columns = [
        list(range(first, first + len(picks))),
        [pick.prompt_id for pick in picks],
        [pick.epoch for pick in picks],
        [pick.turn for pick in picks],
        [pick.reserve for pick in picks],
    ]
    return pa.table(columns, schema=PLAN)


class _Lane:
    """The prompts that share an epoch, and what is known of them."""

    def __init__(
        self,
        candidates: Iterable[Candidate],
        known: Mapping[str, Difficulty],
        config: DataConfig,
        round_number: int,
        seed: int,
    ) -> None:
        self._candidates = list(candidates)
        self._known = {c.prompt_id: known[c.prompt_id] for c in self._candidates if c.prompt_id in known}
        self._config = config
        self._round = round_number
        self._seed = seed
        self._epoch = max((row.last_epoch for row in self._known.values()), default=0)

    def take(self, count: int, share: float, extra: int) -> list[_Pick]:
        """``count`` prompts, then at most ``extra`` for the reserve; ``share`` is the expected count."""
        if count == 0:
            return []
        retries = min(self._retries(share), count)
        fresh, retired = self._left()
        if len(fresh) + min(len(retired), retries) < count:
            self._epoch += 1
            fresh, retired = self._left()
        tried_again = retired[: max(retries, count - len(fresh))]
        turns = [FILLER if place >= retries else RETRY for place in range(len(tried_again))]
        taken = fresh[: count - len(tried_again)]
        reserve = fresh[len(taken) : len(taken) + extra]
        return [
            *(_Pick(one, self._epoch, EPOCH) for one in taken),
            *(_Pick(one, self._epoch, turn) for one, turn in zip(tried_again, turns, strict=True)),
            *(_Pick(one, self._epoch, EPOCH, reserve=True) for one in reserve),
        ]

    def _retries(self, share: float) -> int:
        """Places for retired prompts in this round, so that over the rounds they are ``retry_share`` of all."""
        rate = share * self._config.difficulty.retry_share
        return math.floor(self._round * rate + 1e-9) - math.floor((self._round - 1) * rate + 1e-9)

    def _left(self) -> tuple[list[str], list[str]]:
        """What the epoch has not had yet: active prompts in the curriculum's order, retired ones by their waiting."""
        left = [one for one in self._candidates if self._last_epoch(one) < self._epoch]
        active = [one for one in left if not self._is_retired(one)]
        retired = [one for one in left if self._is_retired(one)]
        active.sort(key=self._turn)
        retired.sort(key=lambda one: (self._known[one.prompt_id].last_round, self._shuffled(one)))
        return [one.prompt_id for one in active], [one.prompt_id for one in retired]

    def _last_epoch(self, one: Candidate) -> int:
        row = self._known.get(one.prompt_id)
        return -1 if row is None else row.last_epoch

    def _is_retired(self, one: Candidate) -> bool:
        row = self._known.get(one.prompt_id)
        return row is not None and row.is_retired

    def _turn(self, one: Candidate) -> tuple[float, tuple[int, str]]:
        keys: dict[str, Callable[[], float]] = {
            "shuffle": lambda: 0.0,
            "pass_rate": lambda: -self._pass_rate(one),
            "column": lambda: math.inf if one.order is None else one.order,
        }
        return keys[self._config.curriculum](), self._shuffled(one)

    def _pass_rate(self, one: Candidate) -> float:
        row = self._known.get(one.prompt_id)
        return 0.5 if row is None else row.pass_rate

    def _shuffled(self, one: Candidate) -> tuple[int, str]:
        return hash64(self._seed, "plan", self._epoch, one.prompt_id), one.prompt_id


def _capped(weights: Mapping[str, float], sizes: Mapping[str, int], wanted: int) -> dict[str, float]:
    """The expected number of prompts of each lane: by weight, but none more than it has; the others take the rest."""
    shares: dict[str, float] = {}
    open_lanes = dict(weights)
    left = float(wanted)
    while open_lanes:
        total = sum(open_lanes.values())
        full = [label for label, weight in open_lanes.items() if left * weight / total > sizes[label]]
        if not full:
            return shares | {label: left * weight / total for label, weight in open_lanes.items()}
        for label in full:
            shares[label] = float(sizes[label])
            del open_lanes[label]
        left = wanted - sum(shares.values())
    return shares


def _systematic(shares: Mapping[str, float], sizes: Mapping[str, int], wanted: int, offset: float) -> dict[str, int]:
    """Whole numbers near the shares that add up to ``wanted``, each share's expectation over ``offset`` exact.

    Systematic sampling (Madow 1949): one point in each of ``wanted`` equal cells, all at the same place in their cells.
    """
    total = sum(shares.values())
    counts: dict[str, int] = {}
    before, points = 0.0, 0
    for label, share in shares.items():
        before += share / total * wanted
        until = min(wanted, max(points, math.ceil(before - offset)), points + sizes[label])
        counts[label], points = until - points, until
    for label in shares:  # rounding may have left the last cell to nobody
        more = min(wanted - points, sizes[label] - counts[label])
        counts[label] += more
        points += more
    return counts
