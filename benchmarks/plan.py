"""What ``grpo-rounds plan`` says against what a process takes: ``python -m benchmarks.plan``.

Builds models of several shapes with random weights, runs one update and one batch of rollouts of each in a process of
its own, and compares the most that the kernel ever held for it (VmHWM) with the estimate. Linux; a few minutes
on two cores.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Case:
    """A model's sizes and the work that it is given."""

    name: str
    family: str = "Llama"
    vocabulary: int = 32000
    hidden: int = 512
    layers: int = 12
    wide: int = 1536
    heads: int = 8
    key_value_heads: int = 4
    tied: bool = True
    prompt: int = 64
    completion: int = 64
    groups: int = 4
    group_size: int = 8
    microbatch: int = 1024
    minibatches: int = 1
    kl_coef: float = 0.04
    checkpointing: bool = False


TOY = Case("toy", vocabulary=300, hidden=64, layers=2, wide=128, heads=4, key_value_heads=2, prompt=4, completion=4)
CASES = [
    Case("54 M Llama"),
    Case("as it is, KL 0", kl_coef=0.0),
    Case("as it is, layers computed again", checkpointing=True),
    Case("31 M Qwen2, long answers", family="Qwen2", hidden=384, layers=10, wide=1024, heads=6, key_value_heads=2,
         vocabulary=50000, completion=160, groups=3, microbatch=2048),
    Case("60 M Llama, wide and shallow, head of its own", hidden=768, layers=4, wide=2048, heads=12,
         key_value_heads=12, vocabulary=20000, tied=False, completion=32, microbatch=512, minibatches=2),
]  # fmt: skip


def build(case: Case, folder: Path) -> None:
    """Save the case's model, with random weights, as the trainer would find it."""
    import torch
    import transformers

    from grpo_core.tiny import byte_tokenizer

    settings = {
        "vocab_size": case.vocabulary, "hidden_size": case.hidden, "intermediate_size": case.wide,
        "num_hidden_layers": case.layers, "num_attention_heads": case.heads,
        "num_key_value_heads": case.key_value_heads, "max_position_embeddings": 4096,
        "tie_word_embeddings": case.tied, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    torch.manual_seed(0)
    config = getattr(transformers, f"{case.family}Config")(**settings)
    getattr(transformers, f"{case.family}ForCausalLM")(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def resident(name: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most since the last ``forget_peak``."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def forget_peak() -> None:
    """Let VmHWM begin again from what is held now (proc_pid_clear_refs(5))."""
    Path("/proc/self/clear_refs").write_text("5")


def rollouts_of(case: Case) -> list[Any]:
    """Rollouts of random tokens, all of the case's lengths."""
    import numpy as np

    from grpo_core.policy.batching import TrainingRollout

    draw = np.random.default_rng(0)
    return [
        TrainingRollout(
            prompt_id=str(group),
            prompt_ids=draw.integers(3, case.vocabulary, case.prompt),
            completion_ids=draw.integers(3, case.vocabulary, case.completion),
            old_logprobs=np.full(case.completion, -10, dtype=np.float32),
            advantage=float(draw.normal()),
        )
        for group in range(case.groups)
        for _ in range(case.group_size)
    ]


def update_config(case: Case) -> Any:
    """The case's ``UpdateConfig``."""
    from grpo_core.policy.config import UpdateConfig

    return UpdateConfig(
        tokens_per_microbatch=case.microbatch,
        minibatches=case.minibatches,
        kl_coef=case.kl_coef,
        gradient_checkpointing=case.checkpointing,
    )


def run_update(case: Case, folder: Path) -> None:
    """The stage ``update_policy`` without its tables: models loaded, steps taken, files saved."""
    import torch

    from grpo_core.models import ModelConfig
    from grpo_core.policy.job import UpdateJob, run_job
    from grpo_core.schemas import no_progress

    job = UpdateJob(
        policy=folder,
        reference=folder if case.kl_coef else None,
        trainer_state=None,
        update=update_config(case),
        model=ModelConfig(device="cpu"),
        temperature=1.0,
        max_new_tokens=case.completion,
        seed=0,
        round_number=1,
    )
    trained = run_job(job, rollouts_of(case), torch.device("cpu"), None, no_progress)
    trained.save_trainer_state(folder / "state")
    trained.save_policy(folder / "saved")


def run_generation(case: Case, folder: Path) -> None:
    """A batch of rollouts that all come to their full length."""
    import numpy as np
    import torch

    from grpo_core.generation.engine import Request, SamplingParams
    from grpo_core.generation.transformers_engine import TransformersEngine
    from grpo_core.models import load_policy, load_tokenizer

    model, tokenizer = load_policy(folder, torch.device("cpu"), torch.float32), load_tokenizer(folder)
    for holder in (model.generation_config, model.config, tokenizer):
        holder.eos_token_id = None
    draw = np.random.default_rng(0)
    requests = [
        Request(str(group), draw.integers(3, case.vocabulary, case.prompt).tolist(), range(case.group_size))
        for group in range(case.groups)
    ]
    engine = TransformersEngine(model, tokenizer)
    engine.generate(requests, SamplingParams(1.0, 1.0, 0, case.completion))


STAGES = {"update_policy": run_update, "generate_rollouts": run_generation}


def estimated(case: Case, folder: Path, stage: str, base: int) -> dict[str, int]:
    """The estimate's components, for a process that begins at ``base`` bytes."""
    from transformers import AutoConfig

    from grpo_core.estimate.memory import generation_memory, update_memory
    from grpo_core.estimate.shapes import shape_of
    from grpo_core.estimate.work import Lengths, largest_held

    model_config = AutoConfig.from_pretrained(folder)
    shape = shape_of(model_config)
    if stage == "update_policy":
        groups = case.groups // case.minibatches
        lengths = Lengths(case.prompt, case.prompt, case.completion, case.completion)
        held = largest_held(model_config, update_config(case), groups, case.group_size, lengths)
        return update_memory(shape, held, compute_bytes=4, base=base, on_cpu=True)
    return generation_memory(
        shape,
        prompts=case.groups,
        rows=case.groups * case.group_size,
        prompt_tokens=case.prompt,
        completion_tokens=case.completion,
        weight_bytes=4,
        base=base,
    )


def measured(case: Case, folder: Path, stage: str) -> tuple[int, int]:
    """Bytes of a process of its own before the model is loaded, and at most."""
    told = json.dumps(asdict(case))
    command = [sys.executable, "-m", "benchmarks.plan", stage, told, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    base, most = map(int, done.stdout.split()[-2:])
    return base, most


def main() -> None:
    """Print a line a case and stage."""
    from rich.console import Console
    from rich.table import Table

    out = Console(width=120)
    table = Table("model", "stage", "estimate MiB", "measured MiB", "estimate / measured")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            build(case, Path(folder))
            for stage in STAGES:
                base, most = measured(case, Path(folder), stage)
                guess = sum(estimated(case, Path(folder), stage, base).values())
                table.add_row(case.name, stage, f"{guess / MIB:,.0f}", f"{most / MIB:,.0f}", f"{guess / most:.2f}")
    out.print(table)


def work(stage: str, case: Case, folder: Path) -> None:
    """Run one stage and print what the process held before and at most.

    A toy goes through the same stage first: libraries that load with the first model are part of the base.
    """
    with tempfile.TemporaryDirectory() as toy:
        build(TOY, Path(toy))
        STAGES[stage](TOY, Path(toy))
    before = resident("VmRSS")
    forget_peak()
    STAGES[stage](case, folder)
    print(before, resident("VmHWM"))


if __name__ == "__main__":
    if sys.argv[1:]:
        work(sys.argv[1], Case(**json.loads(sys.argv[2])), Path(sys.argv[3]))
    else:
        main()
