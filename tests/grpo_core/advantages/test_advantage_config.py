from typing import get_args

import pytest

from grpo_core.advantages.config import READS, AdvantageConfig, Estimator
from grpo_core.config import RunConfig, parse_config, to_yaml
from grpo_core.errors import UserError


def test_the_defaults_are_the_group_z_score() -> None:
    assert AdvantageConfig().read_options() == {"estimator": "group", "epsilon": 1e-4, "ddof": 1}


@pytest.mark.parametrize("estimator", get_args(Estimator))
def test_options_read_are_those_of_the_estimator(estimator: Estimator) -> None:
    config = AdvantageConfig(estimator=estimator)
    assert config.read_options().keys() == {"estimator", *READS[estimator]}
    assert set(READS) == set(get_args(Estimator))
    written = RunConfig(advantage=config)  # every key written out, as in a run folder, is taken again
    assert parse_config(written.model_dump(mode="json"), "it") == written
    assert f"estimator: {estimator}" in to_yaml(written)


@pytest.mark.parametrize(
    ("advantage", "sentence"),
    [
        ({"estimator": "centred", "epsilon": 1e-6}, "'advantage.epsilon' can't be 1e-06: estimator centred does not"),
        ({"estimator": "rloo", "ddof": 0}, "leave it out or choose one of group, batch, reinforce_pp_baseline, gdpo."),
        ({"pass_k": 2}, "'advantage.pass_k' can't be 2: estimator group does not read it"),
        ({"estimator": "tiers", "prior_decay": 0.5}, "choose one of adaptive_tiers"),
        ({"estimator": "group", "component_weights": {"a": 1}}, "choose one of gdpo"),
        ({"estimator": "maxrl", "rank_form": "unit"}, "choose one of rank, tiers, adaptive_tiers"),
        ({"estimator": "tiers", "tier_schedule": [[2, 3]]}, "the rounds must start at 1 and rise"),
        ({"estimator": "tiers", "tier_schedule": []}, "the rounds must start at 1 and rise"),
        ({"estimator": "tiers", "tier_schedule": [[1, 3], [1, 4]]}, "the rounds must start at 1 and rise"),
        ({"estimator": "tiers", "tier_schedule": [[1, 1]]}, "advantage.tier_schedule.0.1"),
        ({"estimator": "adaptive_tiers", "prior_range": [1, 1]}, "the first reward must lie below the second"),
        ({"estimator": "adaptive_tiers", "prior_decay": 1}, "advantage.prior_decay"),
        ({"estimator": "gdpo", "component_weights": {"a": float("inf")}}, "advantage.component_weights.a"),
        ({"estimator": "pass_at_k", "pass_k": 1}, "advantage.pass_k"),
        ({"estimator": "pass_at_k", "pass_k": 9}, "advantage.pass_k (9) can't exceed generation.group_size (8)"),
        ({"estimator": "z_score"}, "advantage.estimator"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(advantage: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_config({"advantage": advantage}, "it")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
