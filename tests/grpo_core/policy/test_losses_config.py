import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from grpo_core.config import parse_config
from grpo_core.errors import UserError
from grpo_core.policy.config import ClipSchedule, UpdateConfig


def test_the_default_is_the_loss_of_ever() -> None:
    config = UpdateConfig()
    assert (config.ratio_level, config.clip, config.aggregation, config.dual_clip) == ("token", "ppo", "token", None)
    assert (config.kl_estimator, config.kl_in, config.kl_bias_correction) == ("k3", "loss", False)
    assert (config.entropy_coef, config.top_entropy, config.importance.correction) == (0, 1, "none")
    assert config.clip_schedule.widths(0.2, 0.28, round_number=1, step=0) == (0.2, 0.28)


@pytest.mark.parametrize(
    ("round_number", "step", "by_rounds", "by_steps"),
    [(1, 0, 0.1, 0.1), (2, 30, 0.11, 0.4 - 0.3 * 0.7), (6, 90, 0.15, 0.37), (11, 99, 0.2, 0.397), (50, 400, 0.2, 0.4)],
)
def test_clip_widths_widen_linearly(round_number: int, step: int, by_rounds: float, by_steps: float) -> None:
    rounds = ClipSchedule(low_start=0.1, over=10).widths(0.2, 0.4, round_number=round_number, step=step)
    assert rounds == (pytest.approx(by_rounds), 0.4)
    schedule = ClipSchedule(high_start=0.1, over=100, unit="steps")
    low, high = schedule.widths(0.2, 0.4, round_number=round_number, step=step)
    assert low == 0.2
    assert high == pytest.approx(0.1 + 0.3 * min(1, step / 100))
    if step != 30:
        assert high == pytest.approx(by_steps)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"dual_clip": 3, "clip": "cispo"}, "dual_clip bounds the ratio of clip ppo"),
        ({"dual_clip": 1}, "greater than 1"),
        ({"clip": "sapo", "clip_schedule": {"low_start": 0.1}}, "no bounds to move with clip sapo"),
        ({"constant_length": 100}, "no divisor of aggregation token"),
        ({"kl_in": "reward", "kl_bias_correction": True}, "set kl_in to loss"),
        ({"importance": {"correction": "mask"}}, "set old_logprobs to trainer"),
        ({"importance": {"low": 3}}, "low 3 must be less than high 2"),
        ({"top_entropy": 0}, "greater than 0"),
        ({"clip": "clamp"}, "'ppo', 'cispo', 'sapo' or 'none'"),
        ({"sapo_temperatures": [1, 0]}, "greater than 0"),
        ({"clip_schedule": {"start": 0.1}}, "Extra inputs"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_a_sentence(bad: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        UpdateConfig(**bad)


def test_a_cut_distribution_has_no_importance_ratio() -> None:
    update = {"old_logprobs": "trainer", "importance": {"correction": "truncate"}}
    with pytest.raises(UserError, match=r"update\.importance\.correction to none") as caught:
        parse_config({"generation": {"top_p": 0.9}, "update": update}, "mine.yaml")
    assert "\n" not in str(caught.value)
    parse_config({"generation": {"top_p": 0.9}, "update": {"old_logprobs": "trainer"}}, "mine.yaml")
    parse_config({"update": update}, "mine.yaml")


def test_the_named_losses_of_the_docs_are_configs() -> None:
    page = (Path(__file__).parents[3] / "docs/algorithms.md").read_text(encoding="utf-8")
    table = page.split("### Named losses")[1].split("### Its parts")[0]
    rows = [row for row in table.splitlines() if row.startswith("|")][2:]
    settings = [match[1] for row in rows if (match := re.match(r"\| [^|]+ \| `([^`]+)`", row))]
    assert len(settings) == len(rows) - 1  # BNPO is the default
    for text in settings:
        assert UpdateConfig.model_validate(yaml.safe_load(f"{{{text}}}")) != UpdateConfig(), text
