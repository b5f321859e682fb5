"""The ``reward_model`` reward: quality by a model trained to score responses."""

import math
import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from grpo_core.errors import UserError
from grpo_core.rewards.reward import Reward
from grpo_core.rewards.scoring_model import ScoringModelConfig, batches, free_memory
from grpo_core.rewards.verdict import Sample, Score, Verdict

REWARD_MODEL_VERSION = 1


class RewardModelConfig(ScoringModelConfig):
    """Options of ``reward_model``."""

    model: str = Field(min_length=1, description="A hub id or a folder of a model for sequence classification.")
    label: int = Field(0, ge=0, description="Which of the model's outputs is the reward.")
    scale: Literal["logit", "sigmoid"] = Field("sigmoid", description="The output itself, or 1 / (1 + exp(-output)).")
    max_tokens: int = Field(4096, ge=2, description="A longer conversation loses its beginning.")


def reward_model_reward(config: RewardModelConfig) -> Reward:
    """R = the output ``label`` of ``AutoModelForSequenceClassification`` for prompt and response, or its sigmoid.

    The two are turns of the model's own chat template where it has one, else a pair of texts. The model is loaded at
    the first call.
    """
    loaded: list[tuple[Any, Any]] = []

    def score(samples: Sequence[Sample]) -> list[Score]:
        if not loaded:
            loaded.append(_load(config))
        model, tokenizer = loaded[0]
        started = time.perf_counter()
        values = _outputs(model, [_ids(tokenizer, sample, config.max_tokens) for sample in samples], config)
        if config.scale == "sigmoid":
            values = [1 / (1 + math.exp(-value)) if value > -700 else 0.0 for value in values]
        seconds = (time.perf_counter() - started) / max(1, len(samples))
        return [Score(Verdict.OK, value, {"reward_model": value}, seconds=seconds) for value in values]

    def close() -> None:
        loaded.clear()
        free_memory()

    return Reward(score, close)


def _outputs(model: Any, rows: list[list[int]], config: RewardModelConfig) -> list[float]:
    import torch  # here, so that whoever scores without a model does not wait for it

    values = [0.0] * len(rows)
    lengths = [len(row) for row in rows]
    for batch in batches(lengths, config.batch_tokens):
        width = max(lengths[index] for index in batch)
        # Padding on the right with the model's own pad id: that is how it finds the last token of each row.
        ids = torch.full((len(batch), width), model.config.pad_token_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(batch):
            ids[row, : lengths[index]], mask[row, : lengths[index]] = torch.tensor(rows[index]), 1
        with torch.inference_mode():
            logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device)).logits.float()
        for row, index in enumerate(batch):
            values[index] = float(logits[row, config.label])
    return values


def _load(config: RewardModelConfig) -> tuple[Any, Any]:
    from safetensors import SafetensorError
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from grpo_core.models import ModelConfig, compute_dtype, resolve_device

    place = ModelConfig(device=config.device, dtype=config.dtype)
    device = resolve_device(place)
    try:
        tokenizer = AutoTokenizer.from_pretrained(config.model)
        model = AutoModelForSequenceClassification.from_pretrained(config.model, dtype=compute_dtype(place, device))
    except (OSError, ValueError, LookupError, ImportError, SafetensorError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
        raise UserError(f"The reward model '{config.model}' can't be loaded ({first}); mend options.model.") from error
    if config.label >= model.config.num_labels:
        raise UserError(
            f"The reward model '{config.model}' has {model.config.num_labels} outputs; set options.label below that."
        )
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id or tokenizer.eos_token_id
    return model.to(device).eval(), tokenizer


def _ids(tokenizer: Any, sample: Sample, longest: int) -> list[int]:
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": sample.prompt}, {"role": "assistant", "content": sample.response}]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(sample.prompt, sample.response)["input_ids"]
    return list(ids[-longest:])
