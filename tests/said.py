"""A person's label, as tests need one."""

from typing import Any

from grpo_core.labels.label import Label


def label(**given: Any) -> Label:
    """One word of Ann's on the first rollout; ``given`` says what is otherwise."""
    values: dict[str, Any] = {
        "rollout_id": "0001/a/0",
        "prompt_id": "a",
        "round": 1,
        "kind": "verdict",
        "name": "verdict",
        "value": "ok",
        "who": "ann",
        "at": "2026-01-01T00:00:00.000Z",
        "rationale": "",
        "trace_id": "tr-1",
        "assessment_id": "a-1",
        "extracted": "41",
        "completion": "41",
        "reward": 0.0,
    }
    return Label(**values | given)
