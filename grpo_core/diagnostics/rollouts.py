"""What the rollouts alone say: how long, how many cut off, how sure the sampler was."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def rollout_metrics(rollouts: pa.Table) -> dict[str, float]:
    """Length of completions in tokens, the share cut off at the limit, and the sampler's mean logprob per token."""
    lengths = pc.list_value_length(rollouts["completion_ids"]).to_numpy()
    truncated = pc.equal(rollouts["finish_reason"], "length").to_numpy()
    logprobs = pc.list_flatten(rollouts["logprobs"]).to_numpy()
    return {
        "rollouts": float(len(lengths)),
        "completion_tokens": float(lengths.sum()),
        "completion_length_mean": float(lengths.mean()),
        "completion_length_max": float(lengths.max()),
        "truncated_share": float(truncated.mean()),
        "sampler_logprob_mean": float(logprobs.mean(dtype=np.float64)),
    }
