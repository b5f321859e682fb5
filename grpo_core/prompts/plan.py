"""Which prompts a round takes: an endless sequence of shuffled epochs, computed from its arguments alone."""

from collections.abc import Sequence

import pyarrow as pa

from grpo_core.errors import UserError
from grpo_core.schemas import PLAN
from grpo_core.seeding import hash64


def plan_round(prompt_ids: Sequence[str], *, round_number: int, prompts_per_round: int, seed: int) -> pa.Table:
    """The prompts of one round, the same on every call with the same arguments and for any order of ``prompt_ids``.

    An epoch is a permutation of all prompts, sorted by ``hash64(seed, "plan", epoch, prompt_id)``, cut into
    ``len(prompt_ids) // prompts_per_round`` whole rounds. The fewer than ``prompts_per_round`` prompts at its end sit
    that epoch out (others in each epoch), so that no round straddles two epochs and none can hold a prompt twice.

    Args:
        prompt_ids: ids of the training prompts, all different.
        round_number: from 1.
        prompts_per_round: how many prompts a round takes, at least 1.
        seed: the run's seed.

    Returns:
        ``prompts_per_round`` rows of ``schemas.PLAN``: ``position`` counts from 0 over the whole run (round 1
        holds 0 to ``prompts_per_round - 1``), ``epoch`` from 0.

    Raises:
        UserError: a round takes more prompts than there are.
        ValueError: two ids are equal, or a number is below 1.
    """
    if round_number < 1 or prompts_per_round < 1:
        raise ValueError(f"round_number {round_number} and prompts_per_round {prompts_per_round} must be at least 1")
    if len(set(prompt_ids)) != len(prompt_ids):
        raise ValueError("prompt_ids must all be different")
    rounds_per_epoch = len(prompt_ids) // prompts_per_round
    if rounds_per_epoch == 0:
        raise UserError(
            f"data.prompts_per_round is {prompts_per_round}, but only {len(prompt_ids)} training prompts are left "
            "after filtering and holding out data.eval_size; lower it or bring more data."
        )
    epoch, round_in_epoch = divmod(round_number - 1, rounds_per_epoch)
    order = sorted(prompt_ids, key=lambda prompt_id: (hash64(seed, "plan", epoch, prompt_id), prompt_id))
    start = round_in_epoch * prompts_per_round
    first = (round_number - 1) * prompts_per_round
    columns = [
        list(range(first, first + prompts_per_round)),
        order[start : start + prompts_per_round],
        [epoch] * prompts_per_round,
    ]
    return pa.table(columns, schema=PLAN)
