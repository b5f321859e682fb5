import pyarrow as pa

from grpo_core.diagnostics import length_by_verdict


def test_lengths_are_joined_by_rollout_and_split_by_verdict():
    rollouts = pa.table(
        {
            "rollout_id": ["a", "b", "c", "d"],
            "completion_ids": [[1], [1, 2], [1, 2, 3, 4], [1] * 9],
            "finish_reason": ["stop", "stop", "length", "stop"],
        }
    )
    rewards = pa.table({"rollout_id": ["c", "d", "b", "a"], "verdict": ["wrong", "timeout", "wrong", "ok"]})
    assert length_by_verdict(rollouts, rewards) == {
        "length_ok_mean": 1.0,
        "length_wrong_mean": 3.0,  # b and c
        "length_truncated_mean": 4.0,  # c
    }
    none_right = rewards.set_column(1, "verdict", pa.array(["wrong"] * 4))
    assert "length_ok_mean" not in length_by_verdict(rollouts, none_right)
