"""A second model that scores: where it comes from, what it runs on, and what of it a fingerprint holds."""

import gc
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.rewards.verdict import Sample


class ScoringModelConfig(BaseModel):
    """What every reward with a model of its own takes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes a GPU where there is one.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: float32 on a CPU, bfloat16 on a GPU."
    )
    batch_tokens: int = Field(
        4096, ge=1, description="Tokens in one forward pass, padding included; a single longer row goes alone."
    )


def batches(lengths: list[int], batch_tokens: int) -> list[list[int]]:
    """Indices of rows in batches of at most ``batch_tokens``, padding included; long rows first, so sizes are alike."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    found: list[list[int]] = []
    for index in order:
        # The first row of a batch is its longest.
        if found and lengths[found[-1][0]] * (len(found[-1]) + 1) <= batch_tokens:
            found[-1].append(index)
        else:
            found.append([index])
    return found


def as_conversation(tokenizer: Any, sample: Sample) -> tuple[str, str]:
    """Prompt and response as texts, the prompt in the tokenizer's chat template where it has one."""
    if not tokenizer.chat_template:
        return sample.prompt, sample.response
    turn = [{"role": "user", "content": sample.prompt}]
    return tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True), sample.response


def model_content(name: str | None) -> str:
    """A digest of a local folder's files; of a hub id or a package the name is all that is known without loading it."""
    folder = Path(name).expanduser() if name else None
    return _folder_digest(folder) if folder is not None and folder.is_dir() else ""


def free_memory() -> None:
    """Give a GPU's memory back after the last reference to a model is gone."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@lru_cache
def _folder_digest(folder: Path) -> str:
    """Once a process: weights are large, and a folder that is being scored with is not edited."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as stream:
            digest.update(f"{file.relative_to(folder).as_posix()}\0".encode())
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
