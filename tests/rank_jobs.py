"""Updates that one process and several ranks do alike: ``torchrun tests/rank_jobs.py FOLDER NAME…`` does them by ranks.

FOLDER holds the models; each job leaves ``FOLDER/by-N/NAME`` for N ranks.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from transformers import Qwen3Config, Qwen3ForCausalLM

from grpo_core import interrupt
from grpo_core.models import ModelConfig, save_policy
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.job import UpdateJob, run_job
from grpo_core.policy.ranks import ALONE, Ranks
from grpo_core.policy.sharded import load_sharded
from grpo_core.schemas import no_progress
from grpo_core.tiny import byte_tokenizer

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")

_PLAIN = {"learning_rate": 1e-3, "epochs": 2, "minibatches": 2, "tokens_per_microbatch": 60}
_TRAINER = {"old_logprobs": "trainer", "top_entropy": 0.6, "importance": {"correction": "truncate"}}
_LORA = {"lora": {"rank": 3, "alpha": 6, "targets": ["q_proj", "down_proj"]}}  # of four ranks one has no row
_STOPPED = {"epochs": 4}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {  # by name: the model, and settings of the update over _PLAIN
    "one-step": ("tied", {"epochs": 1, "minibatches": 1}),
    "plain": ("tied", {}),
    "plain-again": ("tied", {}),
    "untied-trainer": ("untied", _TRAINER | {"entropy_coef": 0.01, "kl_in": "reward", "aggregation": "sequence"}),
    "ppo": ("tied", {"ppo": {"alpha_start": 0.4, "alpha_end": 0.4, "alpha_rounds": 2, "trunk_gradient": True}}),
    "one-microbatch": ("tied", {"tokens_per_microbatch": 4096, "minibatches": 1}),
    "recomputed": ("tied", {"gradient_checkpointing": True}),
    "lora": ("untied", _LORA),
    "lora-all": ("tied", {"lora": {"rank": 2}, "gradient_checkpointing": True, "kl_coef": 0.0}),
    "bfloat16": ("tied", {"epochs": 1}),
    "lora-bfloat16": ("tied", _LORA | {"epochs": 1}),
    "nothing-to-learn": ("tied", {}),
    "long": ("tied", _STOPPED),
    "stopped": ("tied", _STOPPED),
    "resumed": ("tied", _STOPPED),
    "long-lora": ("untied", _STOPPED | _LORA),
    "stopped-lora": ("untied", _STOPPED | _LORA),
    "resumed-lora": ("untied", _STOPPED | _LORA),
}
STOP_AFTER = 3


def make_models(folder: Path) -> None:
    """The models of the jobs: two of random weights, with a tied head and without, and another as reference of each."""
    tokenizer = byte_tokenizer()
    for name, seed in (("tied", 0), ("tied-reference", 1), ("untied", 2), ("untied-reference", 3)):
        config = Qwen3Config(
            vocab_size=len(tokenizer),  # odd, so that ranks have unequal parts
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=256,
            initializer_range=0.2,
            tie_word_embeddings=name.startswith("tied"),
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            save_policy(Qwen3ForCausalLM(config).eval(), tokenizer, folder / name)


def rollouts() -> list[TrainingRollout]:
    """Five groups of unequal prompts and completions; the rewards of one are all equal."""
    draw = np.random.default_rng(3)
    found = []
    for group in range(5):
        prompt = draw.integers(3, 250, 3 + 4 * group)
        for sample in range(4):
            length = int(draw.integers(1, 24))
            found.append(
                TrainingRollout(
                    prompt_id=f"p{group}",
                    prompt_ids=prompt,
                    completion_ids=draw.integers(3, 250, length),
                    old_logprobs=(-5.5 - 0.2 * draw.random(length)).astype(np.float32),
                    advantage=0.0 if group == 2 else float(draw.normal()),
                    in_loss=group != 2,
                    reward=0.25 if group == 2 else float(draw.random()),
                    rollout_id=f"p{group}/{sample}",
                    sample_index=sample,
                )
            )
    return found


def job_of(folder: Path, name: str) -> UpdateJob:
    model, settings = JOBS[name]
    update = UpdateConfig.model_validate(_PLAIN | settings)
    return UpdateJob(
        policy=folder / model,
        reference=folder / f"{model}-reference" if update.kl_coef and not update.lora else None,
        trainer_state=None,
        update=update,
        model=ModelConfig(dtype="bfloat16" if "bfloat16" in name else "float32", device="cpu"),
        temperature=0.9,
        max_new_tokens=24,
        seed=5,
        round_number=1,
    )


class Folder:
    """Goes on from a checkpoint, or saves one after so many steps and stops there."""

    def __init__(self, place: Path, stops: bool) -> None:
        self.place, self.stops = place, stops

    @contextmanager
    def newest(self) -> Iterator[Path | None]:
        yield None if self.stops else self.place

    def due(self, steps_done: int, steps: int) -> bool:
        stop = self.stops and steps_done == STOP_AFTER
        interrupt.ask(stop)
        return stop

    def save(self, steps_done: int, produce: Callable[[Path], None]) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        produce(self.place)


def do(folder: Path, names: Sequence[str], ranks: Ranks = ALONE, from_ranks: int = 2) -> None:
    """Do jobs and save what they leave; those that resume go on from what ``from_ranks`` ranks saved."""
    for name in names:
        out = folder / f"by-{ranks.size}" / name
        out.mkdir(parents=True, exist_ok=True)
        checkpoints = None
        if name.startswith("stopped"):
            checkpoints = Folder(out / "checkpoint", stops=True)
        elif name.startswith("resumed"):
            saved = folder / f"by-{from_ranks}" / name.replace("resumed", "stopped") / "checkpoint"
            checkpoints = Folder(saved, stops=False)
        try:
            taken = [r for r in rollouts() if name != "nothing-to-learn" or not r.in_loss]
            done = run_job(job_of(folder, name), taken, CPU, checkpoints, no_progress, ranks)
        except interrupt.Stopped:
            interrupt.ask(False)
            continue
        done.save_trainer_state(out / "trainer_state")
        done.save_policy(out / "policy")
        if ranks.rank == 0:
            pq.write_table(done.steps, out / "steps.parquet")
            (out / "metrics.json").write_text(json.dumps(asdict(done.metrics)))


def by_ranks(folder: Path, size: int, names: Sequence[str]) -> None:
    """Do jobs by so many real processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    done = subprocess.run(
        [*command, __file__, str(folder), *names],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-20_000:]


def require_a_part_only(folder: Path, ranks: Ranks) -> None:
    """A rank holds its part of the weights and no more."""
    model = load_sharded(folder, CPU, compute=torch.bfloat16)
    held = sum(weight.to_local().numel() for weight in model.parameters())
    rounded_up = sum(-(-weight.shape[0] // ranks.size) * weight[0].numel() for weight in model.parameters())
    assert held <= rounded_up < 1.1 * sum(weight.numel() for weight in model.parameters()) / ranks.size


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    require_a_part_only(Path(sys.argv[1], "tied"), Ranks(dist.get_rank(), dist.get_world_size()))
    do(Path(sys.argv[1]), sys.argv[2:], Ranks(dist.get_rank(), dist.get_world_size()))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # as rank.py does: destructors of gloo's threads have ended in std::terminate, once in many runs
