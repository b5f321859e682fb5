"""A model's config without its weights: from a file, an installed package, a folder, the hub's cache, or the hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_core.errors import NotHere, UserError
from grpo_core.models import ModelConfig, source_options


def source_config(config: ModelConfig, file: Path | None = None, folders: Sequence[Path] = ()) -> Any:
    """The config of transformers for ``model.name``.

    Args:
        file: a config.json to take instead.
        folders: of such files, ``Qwen2.5-1.5B.json`` for any ``.../Qwen2.5-1.5B``; looked into before the hub is asked.

    Raises:
        NotHere: the config is out of reach.
        UserError: the file is no config of a model.
    """
    from transformers import AutoConfig

    if file is not None:
        if not file.is_file():
            raise UserError(f"--model-config '{file}' is not there; give the model's config.json.")
        return _read(AutoConfig, str(file), {})
    if config.name == "tiny":
        from grpo_core.tiny import build_tiny

        return build_tiny(0)[0].config
    if "/" in config.name and not Path(config.name).expanduser().is_dir():
        name = f"{Path(config.name).name}.json"
        stored = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if stored is not None:
            return _read(AutoConfig, str(stored), {})
    try:
        source, options = source_options(config)
    except NotHere as error:
        raise NotHere(
            f"model.name '{config.name}': its config.json is needed, not its weights, and the Hugging Face hub can't "
            "be reached; download that one file and name it with --model-config."
        ) from error
    return _read(AutoConfig, source, options)


def _read(auto: Any, source: str, options: dict[str, Any]) -> Any:
    try:
        return auto.from_pretrained(source, **options)
    except (OSError, ValueError, LookupError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
        raise UserError(f"'{source}' is no config of a model that transformers knows ({first}).") from error
