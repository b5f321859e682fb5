"""Prompts turned to the ids that the model is given."""

from collections.abc import Sequence
from typing import Any

from grpo_core.errors import UserError
from grpo_core.prompts.config import DataConfig


def prompt_token_ids(prompts: Sequence[str], config: DataConfig, tokenizer: Any) -> list[list[int]]:
    """The ids that the model is given for each user's turn: the chat template with its generation prompt, or bare text.

    Raises:
        UserError: there is a system prompt and no chat template, or the template refuses the messages.
    """
    if not (config.chat_template and tokenizer.chat_template):
        if config.system_prompt:
            raise UserError(
                "data.system_prompt is set, but no chat template is in use (data.chat_template is false or the "
                "tokenizer has none); put the text into data.prompt_template."
            )
        # verbose: it warns of texts beyond the model's length, which are rejected by data.max_prompt_tokens.
        return [list(ids) for ids in tokenizer(list(prompts), verbose=False)["input_ids"]]
    from jinja2 import TemplateError

    system = [{"role": "system", "content": config.system_prompt}] if config.system_prompt else []
    conversations = [[*system, {"role": "user", "content": prompt}] for prompt in prompts]
    try:
        encoded: list[list[int]] = tokenizer.apply_chat_template(
            conversations, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except TemplateError as error:
        raise UserError(
            f"The tokenizer's chat template refuses the prompts ({error}); unset data.system_prompt or set "
            "data.chat_template to false."
        ) from error
    return encoded
