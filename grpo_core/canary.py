"""A fixed probe whose logprobs tell whether an engine generates with the weights that the trainer saved.

The trainer writes the probe's logprobs into the policy's folder; whoever loads the policy computes them again. Files
that are whole (digests say so) can still be loaded wrongly: an engine may keep older weights, map a tensor to another
name, or tie a head that is not tied. In float32 any such mistake shows. In lower precisions two engines differ by more
than one small optimiser step does, so there the probe finds wrong weights but not those of the step before.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpo_core.errors import UserError
from grpo_core.generation.engine import Engine

CANARY_FILE = "canary.json"
_LENGTH = 32
_DECIMALS = 4  # of a logprob in nats: what is below depends on the number of threads
_TOLERANCE = {"float32": 1e-3}  # mean |difference| in nats
_TOLERANCE_LOW_PRECISION = 0.15


def probe_ids(vocabulary: int) -> list[int]:
    """The probe: token ids spread over the vocabulary, the same for every policy of a run."""
    return [(13 + 7919 * place) % vocabulary for place in range(_LENGTH)]


def probe_logprobs(model: Any, ids: Sequence[int]) -> list[float]:
    """Logprob at temperature 1, in nats, of each id but the first after those before it."""
    tokens = torch.tensor([list(ids)], device=model.device)
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    found = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    values: list[float] = found.tolist()
    return values


def save_canary(model: Any, folder: Path, found: list[float] | None = None) -> None:
    """Write the probe and its logprobs under this model beside its weights.

    Args:
        found: the logprobs; None: computed now.
    """
    ids = probe_ids(model.config.get_text_config().vocab_size)
    logprobs = [round(value, _DECIMALS) for value in (probe_logprobs(model, ids) if found is None else found)]
    (folder / CANARY_FILE).write_text(json.dumps({"ids": ids, "logprobs": logprobs}) + "\n", encoding="utf-8")


def check_canary(engine: Engine, policy: Path) -> float:
    """Compare an engine with the policy folder that it was opened on.

    Returns:
        Mean |difference| of the probe's logprobs in nats.

    Raises:
        UserError: it is over what the precision explains, or not a number; or the policy brings no probe.
    """
    try:
        told = json.loads((policy / CANARY_FILE).read_bytes())
        ids, expected = told["ids"], told["logprobs"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"'{policy / CANARY_FILE}' can't be read; give a policy that grpo-rounds saved.") from error
    difference = round(float(np.abs(np.subtract(expected, engine.probe(ids))).mean()), _DECIMALS)
    allowed = _TOLERANCE.get(engine.precision, _TOLERANCE_LOW_PRECISION)
    if not difference <= allowed:  # NaN is not, either
        raise UserError(
            f"The engine does not generate with the weights that the trainer saved: the probe's logprobs differ by "
            f"{difference:g} nats on average, where {allowed:g} is allowed; nothing was generated. Run the same "
            "command again; if that does not help, set model.dtype to float32, or install the versions that trained it."
        )
    return difference
