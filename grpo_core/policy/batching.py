"""Which rollouts share an optimiser step, a row and a micro-batch. No tensors here: plain lists, decided by content."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from grpo_core.seeding import hash64


@dataclass(slots=True)
class TrainingRollout:
    """One completion as the update sees it.

    Raises:
        ValueError: an empty prompt or completion, or logprobs that are not one per completion token.
    """

    prompt_id: str
    prompt_ids: npt.NDArray[np.int64]  # (prompt tokens,)
    completion_ids: npt.NDArray[np.int64]  # (tokens,)
    old_logprobs: npt.NDArray[np.float32]  # (tokens,) of the policy that generated, at the sampler's temperature
    advantage: float
    in_loss: bool = True  # False: dead group or no reward; GRPO's term alone
    truncated: bool = False  # finish_reason "length"
    ref_logprobs: npt.NDArray[np.float32] | None = None  # (tokens,) of the reference policy, same temperature
    sampler_logprobs: npt.NDArray[np.float32] | None = None  # (tokens,) where old_logprobs are the trainer's
    old_entropy: npt.NDArray[np.float32] | None = None  # (tokens,) nats, of the policy that generated
    reward: float | None = None  # the total, for PPO's term; None: no reward
    values: npt.NDArray[np.float32] | None = None  # (tokens,) before each token, recorded before step one
    token_advantages: npt.NDArray[np.float32] | None = None  # (tokens,) GAE's, from reward and values
    returns: npt.NDArray[np.float32] | None = None  # (tokens,) what the value head shall predict
    rollout_id: str = ""  # by which the table of steps names it
    sample_index: int = 0

    def __post_init__(self) -> None:
        self.prompt_ids = np.asarray(self.prompt_ids, dtype=np.int64)
        self.completion_ids = np.asarray(self.completion_ids, dtype=np.int64)
        if not self.prompt_ids.size or not self.completion_ids.size:
            raise ValueError(f"rollout of prompt '{self.prompt_id}' has no prompt token or no completion token")
        for name in ("old_logprobs", "ref_logprobs", "sampler_logprobs", "old_entropy"):
            if getattr(self, name) is None:
                continue
            values = np.asarray(getattr(self, name), dtype=np.float32)
            setattr(self, name, values)
            if values.shape != self.completion_ids.shape:
                raise ValueError(
                    f"rollout of prompt '{self.prompt_id}': {name} {values.shape}, tokens {self.completion_ids.shape}"
                )


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """One row: a prompt and some of its completions, token ids each."""

    prompt_ids: Sequence[int] | npt.NDArray[np.int64]
    completions: Sequence[Sequence[int] | npt.NDArray[np.int64]]

    @property
    def tokens(self) -> int:
        """Input tokens of the row. A completion's last token is predicted but never fed in."""
        return len(self.prompt_ids) + sum(len(ids) - 1 for ids in self.completions)

    @property
    def seen_pairs(self) -> int:
        """Pairs of tokens of which one attends to the other, or to itself."""
        prompt, fed = len(self.prompt_ids), [len(ids) - 1 for ids in self.completions]
        return prompt * (prompt + 1) // 2 + sum(tokens * prompt + tokens * (tokens + 1) // 2 for tokens in fed)


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Rows of one forward pass, and the rollouts that they hold in the order of the flat logprobs."""

    groups: list[PackedGroup]
    rollouts: list[TrainingRollout]

    @property
    def tokens(self) -> int:
        """Completion tokens: the entries of the flat logprobs."""
        return sum(len(rollout.completion_ids) for rollout in self.rollouts)


def minibatches(
    rollouts: Sequence[TrainingRollout], count: int, *, seed: int, round_number: int, epoch: int
) -> list[list[TrainingRollout]]:
    """Whole groups in the order of hash64(seed, round, epoch, prompt_id), cut into ``count`` lists of near equal size.

    Never more lists than groups, so none is empty.
    """
    groups = _by_prompt(rollouts)
    order = sorted(groups, key=lambda prompt_id: (hash64(seed, round_number, epoch, prompt_id), prompt_id))
    parts = min(count, len(order))
    cuts = [len(order) * part // parts for part in range(parts + 1)] if parts else [0]
    return [
        [rollout for prompt_id in order[start:end] for rollout in groups[prompt_id]] for start, end in pairwise(cuts)
    ]


def microbatches(
    rollouts: Sequence[TrainingRollout], tokens_per_microbatch: int, crossover: float | None
) -> list[Microbatch]:
    """Pack rollouts into rows and rows of like length into micro-batches of at most so many tokens with padding.

    The largest micro-batch comes first, so that memory is short at once or never, and what one leaves free has room for
    the next. A single completion over the budget still gets a micro-batch, alone.

    Args:
        crossover: row length in tokens at which attention costs as much as the rest of the model; None: a row takes
            one completion only (the padded form).
    """
    rows: list[tuple[PackedGroup, list[TrainingRollout]]] = []
    for group in _by_prompt(rollouts).values():
        prompt = len(group[0].prompt_ids)
        limit = 0 if crossover is None else min(tokens_per_microbatch, ideal_row_tokens(prompt, crossover))
        members: list[TrainingRollout] = []
        filled = prompt
        for rollout in group:
            added = len(rollout.completion_ids) - 1
            if members and filled + added > limit:
                rows.append(_row(members))
                members, filled = [], prompt
            members.append(rollout)
            filled += added
        rows.append(_row(members))
    rows.sort(key=lambda row: -row[0].tokens)  # stable: ties keep the order given
    batches: list[Microbatch] = []
    width = 0
    for packed, members in rows:
        if not batches or (len(batches[-1].groups) + 1) * width > tokens_per_microbatch:
            batches.append(Microbatch([], []))
            width = packed.tokens
        batches[-1].groups.append(packed)
        batches[-1].rollouts.extend(members)
    return sorted(batches, key=lambda batch: -len(batch.groups) * batch.groups[0].tokens)


def ideal_row_tokens(prompt_tokens: int, crossover: float) -> float:
    """The row length that costs least per completion, in tokens.

    A row of k completions of C tokens behind a prompt of P costs (P + kC)(1 + (P + kC) / crossover) with a dense mask:
    more completions share the prompt but attend in vain to each other's places. Per completion that is least at
    kC = sqrt(P (P + crossover)).
    """
    return prompt_tokens + math.sqrt(prompt_tokens * (prompt_tokens + crossover))


def _by_prompt(rollouts: Sequence[TrainingRollout]) -> dict[str, list[TrainingRollout]]:
    groups: dict[str, list[TrainingRollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.prompt_id, []).append(rollout)
    return groups


def _row(members: list[TrainingRollout]) -> tuple[PackedGroup, list[TrainingRollout]]:
    return PackedGroup(members[0].prompt_ids, [rollout.completion_ids for rollout in members]), members
