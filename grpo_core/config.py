"""RunConfig: everything that decides what a run does, composed of the sections that stand beside their code."""

import re
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from grpo_core.advantages.config import AdvantageConfig
from grpo_core.cluster import ClusterConfig
from grpo_core.errors import UserError
from grpo_core.evaluation import EvaluationConfig
from grpo_core.gates.config import GatesConfig
from grpo_core.generation.engine import GenerationConfig
from grpo_core.labels.config import LabelsConfig
from grpo_core.models import ModelConfig
from grpo_core.policy.config import UpdateConfig
from grpo_core.promotion.config import PromotionConfig
from grpo_core.prompts.config import DataConfig
from grpo_core.rewards.score import RewardConfig


class RetentionConfig(BaseModel):
    """Which model files stay on disk. Tables, manifests and the newest round's files always stay."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policies: int = Field(
        2, ge=1, description="Policies kept: the newest so many, besides the first, the best and the champion."
    )
    trainer_states: int = Field(2, ge=1, description="Optimiser states kept: the newest so many.")


class TrackingConfig(BaseModel):
    """Where MLflow's record goes. No stage depends on it: the run folder alone is the truth."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: str | None = Field(
        None, description="MLflow tracking URI; default: MLFLOW_TRACKING_URI, else sqlite beside the run folder."
    )
    experiment: str = Field("grpo-rounds", min_length=1, description="MLflow experiment that holds the run.")
    table_rows: int = Field(200, ge=0, description="Rollouts a round in the JSON table that MLflow's UI can show.")
    traces: int = Field(24, ge=0, description="Rollouts a round as traces in MLflow, for people to label; 0: none.")

    @field_validator("uri")
    @classmethod
    def _holds_no_password(cls, uri: str | None) -> str | None:
        before_host = uri.partition("://")[2].rpartition("@")[0] if uri else ""
        if uri and (":" in before_host or re.search(r"[?&][^=]*(pass|pwd|token|secret)[^=]*=", uri, re.IGNORECASE)):
            raise ValueError(
                "an address with a password belongs into MLFLOW_TRACKING_URI; a config is stored and shown"
            )
        return uri


class RunConfig(BaseModel):
    """One training run. Also the Prefect flow's parameter, so that a bad value is refused before a run exists."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("run", min_length=1, pattern=r"^[\w.-]+$", description="Names the run folder and the MLflow run.")
    seed: int = Field(0, ge=0, description="All randomness derives from it.")
    rounds: int = Field(1000, ge=1, description="How many rounds the run shall have; may grow later.")
    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    labels: LabelsConfig = Field(default_factory=LabelsConfig)
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig)
    update: UpdateConfig = Field(default_factory=UpdateConfig)
    gates: GatesConfig = Field(default_factory=GatesConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    promotion: PromotionConfig = Field(default_factory=PromotionConfig)
    retention: RetentionConfig = Field(default_factory=RetentionConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)

    @model_validator(mode="before")
    @classmethod
    def _corrects_for_another_engine(cls, values: Any) -> Any:
        """Where the engine is not the trainer, what the user left open of the correction for it is on."""
        generation = values.get("generation") if isinstance(values, dict) else None
        update = values.get("update", {}) if isinstance(values, dict) else None
        if not isinstance(generation, dict) or generation.get("engine", "transformers") == "transformers":
            return values
        if not isinstance(update, dict) or not isinstance(update.get("importance", {}), dict):
            return values  # refused below, by name
        filled: dict[str, Any] = {"old_logprobs": "trainer"} | update
        cut = generation.get("top_p", 1) != 1 or generation.get("top_k", 0) != 0
        if filled["old_logprobs"] == "trainer" and not cut:
            filled["importance"] = {"correction": "truncate"} | filled.get("importance", {})
        return values | {"update": filled}

    @model_validator(mode="after")
    def _tries_fit_the_group(self) -> "RunConfig":
        if self.advantage.estimator == "pass_at_k" and self.advantage.pass_k > self.generation.group_size:
            raise ValueError(
                f"advantage.pass_k ({self.advantage.pass_k}) can't exceed generation.group_size "
                f"({self.generation.group_size}); lower the one or raise the other"
            )
        return self

    @model_validator(mode="after")
    def _rewards_suit_the_estimator(self) -> "RunConfig":
        if self.reward.combine == "gdpo" and self.advantage.estimator == "gdpo":
            raise ValueError(
                "advantage.estimator gdpo normalises the reward's components itself and would not read what "
                "reward.combine gdpo makes of them; set reward.combine to sum, or choose another estimator"
            )
        centring = "combine gdpo" if self.reward.combine == "gdpo" else "smoothing" if self.reward.smoothing else None
        if centring is not None and self.advantage.estimator == "maxrl":
            raise ValueError(
                f"advantage.estimator maxrl needs rewards of 0 or more, and reward.{centring} centres them around 0; "
                "set reward.combine to sum and reward.smoothing to 0, or choose another estimator"
            )
        return self

    @model_validator(mode="after")
    def _ratios_compare_like_with_like(self) -> "RunConfig":
        # The sampler's logprobs are those of the cut distribution, the trainer's of the whole one.
        cut = self.generation.top_p < 1 or self.generation.top_k > 0
        if cut and self.update.importance.correction != "none":
            raise ValueError(
                "generation.top_p and generation.top_k cut the distribution that the sampler's logprobs belong to, and "
                "which tokens were left is not recorded, so update.importance can't compare them with the trainer's; "
                "set update.importance.correction to none, or top_p to 1 and top_k to 0"
            )
        if cut and self.update.old_logprobs == "sampler":
            raise ValueError(
                "generation.top_p and generation.top_k cut the distribution that the sampler's logprobs belong to; set "
                "update.old_logprobs to trainer, or top_p to 1 and top_k to 0"
            )
        return self

    @model_validator(mode="after")
    def _there_is_a_kl_to_raise(self) -> "RunConfig":
        for gate, action in self.gates.actions.items():
            if action == "raise_kl" and self.update.kl_coef == 0:
                raise ValueError(
                    f"gates.actions.{gate} is raise_kl, but update.kl_coef is 0 and stays so however it is multiplied; "
                    "choose another action or a kl_coef"
                )
        return self

    @model_validator(mode="after")
    def _there_is_a_score_to_promote_by(self) -> "RunConfig":
        if self.promotion.enabled and self.promotion.score == "avg_at_k" and not self.evaluation.samples:
            raise ValueError(
                "promotion.score is avg_at_k, but evaluation.samples is 0; raise it, or set promotion.score to accuracy"
            )
        if self.promotion.go_back != "never" and not self.promotion.enabled:
            raise ValueError("promotion.go_back needs promotions; set promotion.enabled to true, or go_back to never")
        return self


def load_config(path: Path, overrides: list[str] | None = None, rounds: int | None = None) -> RunConfig:
    """Read a YAML config, apply ``section.key=value`` overrides (values are YAML too) and validate it.

    Raises:
        UserError: the file, a key or a value is not usable; the sentence names it.
    """
    if path.is_dir():
        raise UserError(f"Config file '{path}' is a folder; go on with the run in it by: grpo-rounds resume {path}")
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise UserError(f"Config file '{path}' is not UTF-8 ({error.reason}); save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"Config file '{path}' can't be read; write one with: grpo-rounds init {path}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise UserError(
            f"Config file '{path}' is not YAML{place}; mend that line or start from: grpo-rounds init"
        ) from error
    if not text.strip():  # what a cut or failed write leaves; comments alone are a config of defaults
        raise UserError(f"Config file '{path}' is empty; remove it and write one with: grpo-rounds init {path}")
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise UserError(f"Config file '{path}' must hold keys and values; start from: grpo-rounds init")
    values.setdefault("name", path.stem)
    apply_overrides(values, overrides or [])
    if rounds is not None:
        values["rounds"] = rounds
    return parse_config(values, f"Config file '{path}'")


def apply_overrides(values: dict[str, Any], overrides: list[str]) -> None:
    """Write ``section.key=value`` overrides into plain values. Raises UserError for one that is none."""
    for override in overrides:
        _override(values, override)


def parse_config(values: dict[str, Any], origin: str) -> RunConfig:
    """Validate plain values; ``origin`` names them in an error. Raises UserError."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise UserError(_one_sentence(error, origin)) from error


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {override!r} has no value; write it as --set section.key=value.")
    *path, last = key.strip().split(".")
    place = values
    for part in path:
        inner = place.get(part)
        if inner is None:
            inner = place[part] = {}
        if isinstance(inner, list):
            raise UserError(f"--set {override!r}: '{part}' is a list; change its entries in the config file.")
        if not isinstance(inner, dict):
            raise UserError(f"--set {override!r}: '{part}' is not a section; write it as --set section.key=value.")
        place = inner
    try:
        place[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set {override!r}: the value is not YAML; put it in quotes.") from error


def _one_sentence(error: ValidationError, origin: str) -> str:
    first, more = error.errors()[0], error.error_count() - 1
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(_fields_at(first["loc"][:-1])))
        what = f"unknown key '{key}'; known here: {known}"
    elif not key:
        what = first["msg"].removeprefix("Value error, ").rstrip(".")
    elif first["type"] == "value_error" and isinstance(first["input"], dict):  # a whole section says nothing
        what = f"'{key}': {first['msg'].removeprefix('Value error, ').rstrip('.')}"
    elif key == "tracking.uri":  # not repeated: it may hold a password
        what = f"'{key}': {first['msg'].removeprefix('Value error, ')}"
    else:
        message = first["msg"].removeprefix("Value error, ").rstrip(".")
        what = f"'{key}' can't be {first['input']!r}: {message[:1].lower()}{message[1:]}"
    others = f" (and {more} more)" if more else ""
    return f"{origin}: {what}{others}."


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    model: Any = RunConfig
    for part in location:
        if get_origin(model) in (dict, list):  # keys of the user's own or places, and what each holds
            model = get_args(model)[-1]
            continue
        field = model.model_fields.get(str(part))
        model = field.annotation if field else None
        if get_origin(model) is UnionType:  # a section that may be left out
            model = get_args(model)[0]
        if get_origin(model) not in (dict, list) and not (isinstance(model, type) and issubclass(model, BaseModel)):
            return []
    return list(model.model_fields)


@dataclass(frozen=True, slots=True)
class Change:
    """One key whose value differs between two configs, as plain JSON values."""

    key: str
    old: Any
    new: Any


def changes(old: RunConfig, new: RunConfig) -> list[Change]:
    """The keys, by dotted name, whose values differ."""
    return _differences(old.model_dump(mode="json"), new.model_dump(mode="json"), "")


def _differences(old: Any, new: Any, prefix: str) -> list[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*new, *(key for key in old if key not in new)]
        return [found for key in keys for found in _differences(old.get(key), new.get(key), f"{prefix}{key}.")]
    return [] if old == new else [Change(prefix.rstrip("."), old, new)]


def to_yaml(config: RunConfig) -> str:
    """The config with every default written out, for the run folder and for MLflow."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
