"""Bytes on disk: what every round leaves for good, and the model files that come and go by the retention settings."""

from dataclasses import dataclass

from grpo_core.estimate.shapes import Shape

TOKEN_BYTES = 7.0
"""A token in a Parquet file of rollouts, its id, logprob and text: 10,000 rollouts of 1,000 tokens took 70 MB."""
ROLLOUT_BYTES = 600
"""A rollout's rows in the other tables of its round; assumed."""
_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes."""

    round_tables: int  # a round leaves for good
    policy: int  # one policy
    trainer_state: int  # one optimiser's state
    checkpoint: int  # of an update under way; 0: none
    models_at_most: int  # of all model files, while a round is being finished
    run: int  # at the end of the run, at most


def disk_bytes(
    shape: Shape,
    *,
    rollouts: int,
    completion_tokens: float,
    rounds: int,
    policies_kept: int,
    states_kept: int,
    kept_besides: int,
    weight_bytes: int,
    steps: int,
    checkpoint_steps: int,
) -> Disk:
    """What a run writes, by its shape and its retention settings.

    A state holds two float32 moments, and master weights where the policy beside it is smaller or LoRA's. While a round
    is being finished there is one more policy and state than is kept; round 0's policy is always in float32.

    Args:
        completion_tokens: mean.
        kept_besides: policies that stay besides the first and the newest: the best, the champion.
        weight_bytes: of a policy's parameter.
        steps: optimiser steps a round.
        checkpoint_steps: as in the config.
    """
    trained = shape.adapter or shape.parameters
    master = weight_bytes < _FLOAT32 or shape.adapter > 0
    policy = shape.parameters * weight_bytes + shape.adapter * _FLOAT32
    state = trained * _FLOAT32 * (3 if master else 2)
    checkpoints = (steps - 1) // checkpoint_steps if checkpoint_steps else 0
    checkpoint = trained * _FLOAT32 * 3 * min(2, checkpoints)  # the older one goes when the newer is whole
    tables = int(rollouts * (completion_tokens * TOKEN_BYTES + ROLLOUT_BYTES))
    models = shape.parameters * _FLOAT32
    models += policy * min(rounds, policies_kept + kept_besides + 1) + state * min(rounds, states_kept + 1)
    return Disk(tables, policy, state, checkpoint, models + checkpoint, tables * rounds + models + checkpoint)
