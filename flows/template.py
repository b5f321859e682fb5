"""A commented config, written from the config classes themselves so that it can't fall behind them."""

import json
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from grpo_core.config import RunConfig

_HEAD = """\
# A grpo-rounds config. Every key stands at its default; delete the lines you don't change.
# Check it:  grpo-rounds train THIS_FILE --dry-run      Train:  grpo-rounds train THIS_FILE
"""
_WIDTH = 96


def commented_config() -> str:
    """YAML of the default config with each key's meaning above it; loads to ``RunConfig()`` but for the name."""
    return _HEAD + "\n".join(_section(RunConfig, ""))


def _section(model: type[BaseModel], indent: str) -> list[str]:
    lines: list[str] = []
    for key, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            about = (field.description or (kind.__doc__ or "").split("\n")[0]).strip()
            lines += ["", *_comment(about, indent), f"{indent}{key}:", *_section(kind, indent + "  ")]
        else:
            lines += [*_comment(field.description or "", indent), f"{indent}{key}: {_value(field)}"]
    return [*lines, ""] if not indent else lines


def _comment(text: str, indent: str) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > _WIDTH - len(indent):
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [f"{indent}# {text}" for text in [*lines, line] if text]


def _value(field: FieldInfo) -> str:
    default: Any = field.get_default(call_default_factory=True)
    return json.dumps(default, ensure_ascii=False)  # JSON scalars and lists are YAML, too
