"""Names of a run's traces in MLflow, and of what the checks say on them: the same however often they are written."""

import hashlib

RUN_KEY = "grpo_rounds.run"  # metadata of a trace, by which a run's traces are found
ROLLOUT_KEY = "grpo_rounds.rollout_id"
PROMPT_KEY = "grpo_rounds.prompt_id"
ROUND_KEY = "grpo_rounds.round"
CHECK = "grpo-rounds"  # source of what the checks say


def trace_id(run_identity: str, rollout_id: str, completion: str) -> str:
    """A rollout that was generated anew with another text is another trace: what people said of the old one is not
    about it."""
    return f"tr-{_digest(run_identity, rollout_id, completion)}"


def assessment_id(trace: str, name: str) -> str:
    return f"a-{_digest(trace, name)}"


def span_id(trace: str) -> str:
    return _digest(trace, "span")[:16]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
