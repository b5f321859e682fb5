"""Which reward scores the rows of which source."""

from typing import Any

import pytest
from pydantic import ValidationError

from grpo_core.errors import UserError
from grpo_core.prompts.config import DataConfig, SourceConfig
from grpo_core.prompts.rewards import check_source_reward, source_rewards
from grpo_core.rewards.score import RewardConfig

MIX = [
    {"source": "gsm8k"},
    {"source": "mbpp"},
    {"source": "reasoning-gym:gcd", "name": "gym"},
]
COMPONENTS = {"right": {"reward": "math"}, "brief": {"reward": "length"}}


def names(sources: list[dict[str, Any]], **own: Any) -> dict[str, str]:
    found = source_rewards(DataConfig(sources=sources), RewardConfig(**own))
    return {label: reward.name for label, reward in found.items()}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"mbpp": "code", "gym": "reasoning-gym"}),
        ({"name": "code"}, {"gym": "reasoning-gym"}),
        ({"name": "reasoning-gym"}, {"mbpp": "code"}),
        ({"components": COMPONENTS}, {"mbpp": "code", "gym": "reasoning-gym"}),
        ({"components": {**COMPONENTS, "runs": {"reward": "code"}}}, {"gym": "reasoning-gym"}),
        ({"name": "my_rewards:style"}, {}),
        ({"name": "judge", "options": {"model": "m"}}, {}),
    ],
)
def test_a_checker_of_other_rows_gives_way(own: dict[str, Any], expected: dict[str, str]) -> None:
    assert names(MIX, **own) == expected


def test_a_source_s_own_reward_wins() -> None:
    assert names([{"source": "mbpp", "reward": "math"}], name="judge") == {"mbpp": "math"}
    # The run's own settings of the same reward hold, unless the source has options of its own.
    assert names([{"source": "mbpp", "reward": "code"}], name="code", options={"timeout_seconds": 3}) == {}
    keys = {"reward": "code", "reward_options": {"timeout_seconds": 5}}
    found = source_rewards(
        DataConfig(sources=[{"source": "mbpp", **keys}]), RewardConfig(components=COMPONENTS, retries=3)
    )
    assert found["mbpp"] == RewardConfig(name="code", options={"timeout_seconds": 5}, retries=3)


def test_one_source_and_held_out_ones_count_too() -> None:
    data = DataConfig(source="humaneval", eval_sources=[{"source": "reasoning-gym:gcd"}, {"source": "gsm8k"}])
    assert sorted(source_rewards(data, RewardConfig())) == ["humaneval", "reasoning-gym:gcd"]
    with pytest.raises(ValidationError, match="two sources are called 'humaneval'; give each a name"):
        DataConfig(source="humaneval", eval_sources=[{"source": "humaneval"}])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"reward": "nope"}, r"^data\.sources\.1\.reward 'nope' is not known"),
        (
            {"reward": "code", "reward_options": {"timeout": 1}},
            r"'data\.sources\.1\.reward_options\.timeout'; code knows",
        ),
        ({"reward": "math", "reward_options": {"correct": 1}}, r"^data\.sources\.1\.reward_options: math takes its"),
    ],
)
def test_a_bad_reward_is_named_by_its_source(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_source_reward("data.sources.1", SourceConfig(source="gsm8k", **keys), RewardConfig(name="judge"))


def test_options_need_their_reward() -> None:
    with pytest.raises(ValidationError, match="reward_options needs reward"):
        SourceConfig(source="gsm8k", reward_options={"correct": 2})


@pytest.mark.parametrize("keys", [{"weight": 2}, {"from_round": 3}])
def test_what_no_held_out_source_can_have_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"eval_sources\.0 has a weight or a from_round"):
        DataConfig.model_validate({"source": "gsm8k", "eval_sources": [{"source": "math", **keys}]})
