import pyarrow as pa
import pytest

from grpo_core.diagnostics import advantage_metrics, reward_metrics, rollout_metrics
from grpo_core.evaluation import summarise
from grpo_core.rewards.verdict import Score, Verdict


def test_rollout_metrics_by_hand():
    table = pa.table(
        {
            "completion_ids": [[1, 2], [3], [4, 5, 6]],
            "finish_reason": ["stop", "stop", "length"],
            "logprobs": pa.array([[-1.0, -2.0], [-3.0], [-0.5, -0.5, -1.0]], pa.list_(pa.float32())),
        }
    )
    metrics = rollout_metrics(table)
    assert metrics["completion_length_mean"] == 2.0
    assert metrics["completion_length_max"] == 3.0
    assert metrics["completion_tokens"] == 6.0
    assert metrics["truncated_share"] == pytest.approx(1 / 3)
    assert metrics["sampler_logprob_mean"] == pytest.approx(-8 / 6)


def test_reward_metrics_leave_out_what_was_never_checked():
    table = pa.table(
        {
            "verdict": ["ok", "wrong", "timeout", "ok"],
            "reward": [1.1, 0.0, None, 1.0],
            "components": pa.array(
                [
                    [("box", 0.1), ("correct", 1.0)],
                    [("box", 0.0), ("correct", 0.0)],
                    [],
                    [("box", 0.0), ("correct", 1.0)],
                ],
                pa.map_(pa.string(), pa.float64()),
            ),
        }
    )
    metrics = reward_metrics(table)
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["reward_mean"] == pytest.approx(0.7)
    assert metrics["reward_box_mean"] == pytest.approx(0.1 / 3)
    assert metrics["unchecked"] == 1.0
    assert metrics["verdict_timeout_share"] == 0.25


def test_advantage_metrics_count_groups_not_rows():
    table = pa.table(
        {
            "prompt_id": ["a", "a", "b", "b"],
            "zero_variance": [True, True, False, False],
            "in_loss": [False, False, True, True],
            "advantage": [0.0, 0.0, 1.0, -1.0],
        }
    )
    metrics = advantage_metrics(table)
    assert metrics["groups"] == 2.0
    assert metrics["zero_variance_share"] == 0.5
    assert metrics["rollouts_in_loss"] == 2.0
    assert metrics["advantage_std"] == 1.0


def scores(*verdicts: str) -> list[Score]:
    return [Score(Verdict(v), 1.0 if v == "ok" else 0.0) for v in verdicts]


def test_accuracy_avg_and_pass_at_k_by_hand():
    metrics = summarise(
        [scores("ok"), scores("wrong"), scores("timeout")],
        [scores("ok", "wrong"), scores("wrong", "wrong"), scores("error", "ok")],
        2,
    )
    assert metrics["accuracy"] == 0.5  # the prompt whose check timed out says nothing
    assert metrics["accuracy_stderr"] == pytest.approx((0.25 / 2) ** 0.5)
    assert metrics["avg_at_2"] == pytest.approx((0.5 + 0.0 + 1.0) / 3)
    assert metrics["pass_at_2"] == pytest.approx(2 / 3)
    assert metrics["unchecked"] == 2.0


def test_no_samples_asked_for_gives_no_sample_metrics():
    assert set(summarise([scores("ok")], [], 0)) == {"accuracy", "accuracy_stderr", "unchecked"}
