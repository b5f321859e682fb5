"""The tables of a run: one explicit Arrow schema each. Rows of a group share the key (round, prompt_id).

Wall-clock figures have no column here: equal work leaves equal bytes.
"""

from collections.abc import Callable

import pyarrow as pa

Progress = Callable[[int, int], None]
"""Called as ``progress(done, total)`` from inside long work, in the unit that the stage counts."""


def no_progress(done: int, total: int) -> None:
    """The default listener: hears and says nothing."""


def shifted(progress: Progress, before: int, total: int) -> Progress:
    """The listener for one part of a larger piece of work, of which ``before`` units are done already."""
    return lambda done, _: progress(before + done, total)


def rollout_id(round_number: int, prompt_id: str, sample_index: int) -> str:
    """The name of one rollout, e.g. ``0007/3f2a…/5``."""
    return f"{round_number:04d}/{prompt_id}/{sample_index}"


def _required(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, nullable=False)


_ROLLOUT_KEY = [
    _required("rollout_id", pa.string()),
    _required("round", pa.int32()),
    _required("prompt_id", pa.string()),
    _required("sample_index", pa.int32()),
]

PROMPTS = pa.schema(
    [
        _required("prompt_id", pa.string()),
        _required("source", pa.string()),
        _required("source_row", pa.int64()),
        _required("prompt", pa.string()),  # the user's turn as text, after the prompt template
        _required("gold", pa.string()),
        _required("prompt_ids", pa.list_(pa.int32())),  # the chat template applied once, to ids
        pa.field("solution", pa.string()),
        pa.field("extra", pa.string()),  # a JSON object: what else its reward needs, such as tests
        pa.field("order", pa.float64()),  # what a curriculum by column sorts by
    ]
)

REJECTED = pa.schema(
    [
        _required("source", pa.string()),
        _required("source_row", pa.int64()),
        pa.field("prompt", pa.string()),
        pa.field("gold", pa.string()),
        _required("reason", pa.string()),
        _required("detail", pa.string()),
    ]
)

PLAN = pa.schema(
    [
        _required("position", pa.int32()),
        _required("prompt_id", pa.string()),
        _required("epoch", pa.int32()),
        _required("turn", pa.string()),  # why it is in: "epoch", "retry" (retired, tried again) or "filler"
        _required("reserve", pa.bool_()),  # taken only when too many groups before it have no variance
    ]
)

DIFFICULTY = pa.schema(
    [
        _required("prompt_id", pa.string()),
        _required("visits", pa.int32()),  # rounds that took it
        _required("rollouts", pa.int32()),  # of all visits, those whose check came to a finding
        _required("solved", pa.int32()),
        _required("weight", pa.float64()),  # of these rollouts, older visits counting less
        _required("weight_solved", pa.float64()),
        _required("pass_rate", pa.float64()),
        _required("lower", pa.float64()),  # ends of the credible interval of the pass rate
        _required("upper", pa.float64()),
        _required("state", pa.string()),  # "active", "solved" or "failed"; the last two are retired
        _required("last_round", pa.int32()),
        _required("last_epoch", pa.int32()),
    ]
)

ROLLOUTS = pa.schema(
    [
        *_ROLLOUT_KEY,
        _required("prompt_ids", pa.list_(pa.int32())),
        _required("completion_ids", pa.list_(pa.int32())),  # ends with an EOS id when finish_reason is "stop"
        _required("logprobs", pa.list_(pa.float32())),  # of the sampler, at its temperature; one per completion id
        _required("text", pa.string()),
        _required("finish_reason", pa.string()),  # "stop" or "length"
        _required("seed", pa.uint64()),
        _required("temperature", pa.float32()),
        _required("top_p", pa.float32()),
        _required("top_k", pa.int32()),
        _required("max_new_tokens", pa.int32()),
        _required("policy_digest", pa.string()),
        _required("engine", pa.string()),
        _required("engine_version", pa.string()),
    ]
)

REWARDS = pa.schema(
    [
        *_ROLLOUT_KEY,
        _required("verdict", pa.string()),
        pa.field("extracted", pa.string()),  # the answer found in the text, null when there is none
        _required("gold", pa.string()),
        _required("components", pa.map_(pa.string(), pa.float64())),  # raw, before weights; null where masked
        pa.field("reward", pa.float64()),  # null: not a reward (timeout, error, missing), never a silent zero
        _required("detail", pa.string()),
    ]
)

ADVANTAGES = pa.schema(
    [
        *_ROLLOUT_KEY,
        pa.field("reward", pa.float64()),
        _required("group_size", pa.int32()),
        _required("group_valid", pa.int32()),  # rollouts of the group that have a reward
        pa.field("group_mean", pa.float64()),
        pa.field("group_std", pa.float64()),
        _required("zero_variance", pa.bool_()),  # all valid rewards equal, or fewer than two of them
        _required("advantage", pa.float64()),
        _required("in_loss", pa.bool_()),
        pa.field("rank", pa.float64()),  # 0 to 1, inside the group or the tier; estimators that don't rank leave it out
        pa.field("tier", pa.int32()),  # 0 is the bottom; left out by estimators without tiers
    ]
)

REFERENCE = pa.schema(
    [
        *_ROLLOUT_KEY,
        _required("ref_logprobs", pa.list_(pa.float32())),  # of the KL's reference; one per completion id
    ]
)

STEPS = pa.schema(
    [
        *_ROLLOUT_KEY,
        _required("optimizer_step", pa.int32()),  # within the round, from 1
        _required("trainer_step", pa.int32()),  # within the run, from 1
        _required("tokens", pa.int32()),  # of the rollout, all of which entered the step's loss
        _required("gradient_share", pa.float64()),  # of the step's; grpo_core.policy.shares says of which gradient
        _required("clipped_tokens", pa.int32()),
    ]
)

GROUPS = pa.schema(
    [
        _required("prompt_id", pa.string()),
        pa.field("mean_reward", pa.float64()),  # over valid rewards, null when there is none
        _required("tier", pa.string()),  # "solved", "mixed", "failed" or "unknown"
    ]
)

EVALUATION = pa.schema(
    [
        _required("prompt_id", pa.string()),
        _required("mode", pa.string()),  # "greedy" or "sample"
        _required("sample_index", pa.int32()),
        _required("completion_ids", pa.list_(pa.int32())),
        _required("text", pa.string()),
        _required("finish_reason", pa.string()),
        _required("verdict", pa.string()),
        pa.field("extracted", pa.string()),
        _required("gold", pa.string()),
        pa.field("reward", pa.float64()),
    ]
)

LABELS = pa.schema(
    [
        _required("rollout_id", pa.string()),  # of the labelled rollout
        _required("prompt_id", pa.string()),
        _required("round", pa.int32()),  # of the rollout
        _required("kind", pa.string()),  # "verdict", "gold", "tier" or "comment"
        _required("name", pa.string()),  # as the person called it
        _required("value", pa.string()),  # verdict: a Verdict; tier: "top", "bottom" or its number
        _required("who", pa.string()),
        _required("at", pa.string()),  # ISO, UTC: when the person said so last
        _required("rationale", pa.string()),
        _required("trace_id", pa.string()),
        _required("assessment_id", pa.string()),
        pa.field("extracted", pa.string()),  # these three say what was labelled, as its round's tables had it then
        _required("completion", pa.string()),
        pa.field("reward", pa.float64()),
    ]
)
