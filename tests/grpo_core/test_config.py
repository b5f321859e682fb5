from pathlib import Path

import pytest
import yaml

from flows.template import commented_config
from grpo_core.config import Change, RunConfig, changes, load_config, to_yaml
from grpo_core.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"


def load(tmp_path, text, **more):
    (tmp_path / "mine.yaml").write_text(text)
    return load_config(tmp_path / "mine.yaml", **more)


def test_defaults_are_the_usual_recipe():
    config = RunConfig()
    assert config.generation.group_size == 8
    assert config.generation.temperature == 1.0
    assert config.generation.max_new_tokens == 2048
    assert config.update.learning_rate == 1e-6
    assert config.update.kl_coef == 0.04
    assert (config.reward.correct, config.reward.box_bonus) == (1.0, 0.1)


def test_name_defaults_to_the_file_and_overrides_win(tmp_path):
    config = load(tmp_path, "rounds: 3\n", overrides=["update.learning_rate=1e-5", "generation.group_size=4"], rounds=5)
    assert config.name == "mine"
    assert config.rounds == 5
    assert config.update.learning_rate == 1e-5
    assert config.generation.group_size == 4


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("generation: {group_sise: 8}", "generation.group_sise"),
        ("generation: {group_size: 1}", "generation.group_size"),
        ("unknown: 1", "unknown"),
        ("rounds: many", "rounds"),
        ("generation: 3", "generation"),
        ("a: [", "line 1"),
        ("generation: {top_p: 0.9}", "update.old_logprobs"),
        ("tracking: {uri: 'postgresql://me:secret@host/db'}", "MLFLOW_TRACKING_URI"),
        ("tracking: {uri: 'postgresql://host/db?user=me&password=secret'}", "MLFLOW_TRACKING_URI"),
        ("- 1", "must hold keys"),
        ("\n \n", "is empty"),
    ],
)
def test_bad_config_is_one_sentence_that_names_the_key(tmp_path, text, named):
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert named in message
    assert "mine.yaml" in message
    assert "\n" not in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("estimator", "reward"), [("gdpo", "combine: gdpo"), ("maxrl", "combine: gdpo"), ("maxrl", "smoothing: 0.9")]
)
def test_an_estimator_refuses_rewards_that_it_can_not_read(tmp_path, estimator, reward):
    parts = "components: {right: {reward: math}, form: {reward: format}}"
    with pytest.raises(UserError, match=rf"estimator {estimator} .* set reward\.combine to sum") as caught:
        load(tmp_path, f"reward: {{{reward}, {parts}}}\nadvantage: {{estimator: {estimator}}}")
    assert "\n" not in str(caught.value)
    summed = load(tmp_path, f"reward: {{{parts}}}\nadvantage: {{estimator: {estimator}}}")
    assert summed.advantage.estimator == estimator
    load(tmp_path, f"reward: {{{reward}, {parts}}}")


@pytest.mark.parametrize("override", ["update", "=1", "rounds.x=1", "update.learning_rate=[", "update.lr=1"])
def test_bad_override_is_one_sentence(tmp_path, override):
    with pytest.raises(UserError):
        load(tmp_path, "rounds: 2", overrides=[override])


def test_an_override_into_a_list_says_where_to_change_it(tmp_path):
    with pytest.raises(UserError, match="'sources' is a list; change its entries in the config file"):
        load(tmp_path, "data: {sources: [{source: additions}]}", overrides=["data.sources.0.weight=2"])


def test_comments_alone_are_the_defaults(tmp_path):
    assert load(tmp_path, "# nothing changed\n").rounds == RunConfig().rounds


def test_a_folder_or_a_binary_file_is_named_as_such(tmp_path):
    with pytest.raises(UserError, match=r"is a folder; .* grpo-rounds resume"):
        load_config(tmp_path)
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not UTF-8"):
        load_config(tmp_path / "mine.yaml")


def test_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="grpo-rounds init"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_are_valid_and_named_after_their_file(path):
    assert load_config(path).name == path.stem


def test_stored_config_reads_back_equal():
    config = load_config(CONFIGS / "quickstart.yaml")
    assert RunConfig.model_validate(yaml.safe_load(to_yaml(config))) == config


def test_commented_config_holds_every_key_at_its_default_with_a_comment():
    text = commented_config()
    assert RunConfig.model_validate(yaml.safe_load(text)) == RunConfig()
    lines = text.splitlines()
    keys = [number for number, line in enumerate(lines) if line and not line.lstrip().startswith("#")]
    assert len(keys) > 40
    assert [lines[number] for number in keys if not lines[number - 1].lstrip().startswith("#")] == []


def test_changed_keys_are_named_by_their_dots():
    old = RunConfig()
    new = old.model_copy(update={"update": old.update.model_copy(update={"kl_coef": 0.1}), "seed": 3})
    assert changes(old, new) == [Change("seed", 0, 3), Change("update.kl_coef", 0.04, 0.1)]


@pytest.mark.parametrize(
    ("generation", "update", "expected"),
    [
        ({}, {}, ("sampler", "none")),
        ({"engine": "vllm"}, {}, ("trainer", "truncate")),
        ({"engine": "server"}, {"importance": {"high": 5.0}}, ("trainer", "truncate")),
        ({"engine": "vllm"}, {"importance": {"correction": "mask"}}, ("trainer", "mask")),
        ({"engine": "vllm"}, {"importance": {"correction": "none"}}, ("trainer", "none")),
        ({"engine": "vllm"}, {"old_logprobs": "sampler"}, ("sampler", "none")),
        ({"engine": "vllm", "top_p": 0.9}, {}, ("trainer", "none")),
    ],
)
def test_another_engine_is_corrected_for_unless_the_user_says_otherwise(
    generation: dict[str, object], update: dict[str, object], expected: tuple[str, str]
) -> None:
    config = RunConfig.model_validate({"generation": generation, "update": update})
    assert (config.update.old_logprobs, config.update.importance.correction) == expected
    assert RunConfig.model_validate(yaml.safe_load(to_yaml(config))) == config
