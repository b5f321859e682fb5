"""``grpo-rounds plan``: what a run will take: memory a stage, tokens, hours, disk. It needs no weights."""

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grpo_core.config import RunConfig
from grpo_core.errors import NotHere, UserError
from grpo_core.estimate.machine import GIB, Machine, gpus, memory_bytes, refuse_too_many, this_machine
from grpo_core.estimate.memory import CPU_HELPERS, StageMemory, update_memory
from grpo_core.estimate.shapes import shape_of
from grpo_core.estimate.source import source_config
from grpo_core.models import resolve_device, source_tokenizer
from grpo_core.prompts.config import SourceConfig
from grpo_core.prompts.filters_tokens import prompt_token_ids
from grpo_core.prompts.known import REASONING_GYM
from grpo_core.prompts.sources import load_rows, local_path

if TYPE_CHECKING:
    from grpo_core.estimate.run import Estimate
    from grpo_core.estimate.work import Lengths

_ROWS = 64  # of each source, whose prompts are turned to ids
_MEAN_SHARE = 2  # an answer takes half of generation.max_new_tokens, unless the user says otherwise


def make_plan(
    config: RunConfig,
    *,
    machine: Machine | None = None,
    model_config: Path | None = None,
    folders: tuple[Path, ...] = (),
    mean_completion: int | None = None,
    tflops: float | None = None,
) -> "Estimate":
    """The estimate for a run, on a machine or on this one.

    Raises:
        UserError: the model's config can't be had.
    """
    from grpo_core.estimate.run import estimate_run  # traces, and so takes seconds to import

    found = source_config(config.model, model_config, folders)
    machine = machine or this_machine(config.model, tflops)
    return estimate_run(config, found, lengths_of(config, mean_completion), machine)


def lengths_of(config: RunConfig, mean_completion: int | None = None) -> "Lengths":
    """Tokens of prompts, from the first rows of the sources that lie on this machine; else assumed from the limits."""
    from grpo_core.estimate.work import Lengths

    most = config.generation.max_new_tokens
    mean = min(most, mean_completion or -(-most // _MEAN_SHARE))
    limit = config.data.max_prompt_tokens
    try:
        found = [len(ids) for ids in _first_prompts(config) if len(ids) <= limit]
    except (UserError, OSError, ValueError, LookupError, ImportError):  # the run itself will say what is wrong
        found = []
    if not found:
        return Lengths(-(-limit // 2), limit, mean, most)
    return Lengths(-(-sum(found) // len(found)), max(found), mean, most)


def _first_prompts(config: RunConfig) -> Iterator[list[int]]:
    here = [(where, source) for where, source in config.data.places.items() if _is_here(source)]
    if not here:
        return
    tokenizer = source_tokenizer(config.model)
    for where, source in here:
        rows = islice(load_rows(source, config.seed, where), _ROWS)
        prompts = [config.data.prompt_template.format(prompt=str(row.prompt)) for row in rows]
        yield from prompt_token_ids(prompts, config.data, tokenizer)


def _is_here(source: SourceConfig) -> bool:
    made = source.source == "additions" or source.source.startswith(REASONING_GYM)
    return made or local_path(source.source) is not None


def refuse_what_cannot_fit(config: RunConfig, model_folder: str | None = None) -> None:
    """Raises NotHere when weights, gradients and moments alone are more than this machine has.

    These four are exact, so nothing that works is refused; a model that can't be counted is not refused either.

    Args:
        model_folder: of the run's first policy, where there is one.
    """
    model = config.model if model_folder is None else config.model.model_copy(update={"name": model_folder})
    device = resolve_device(model)
    try:
        shape = shape_of(source_config(model), config.update.lora)
    except Exception:  # whatever keeps a model from being counted, an estimate never stops a run by its own failure
        return
    on_cpu = device.type == "cpu"
    half = config.model.dtype == "bfloat16" or (config.model.dtype == "auto" and not on_cpu)
    found = update_memory(
        shape,
        None,
        compute_bytes=2 if half else 4,
        base=0,
        on_cpu=on_cpu,
        ranks=1 if on_cpu else config.update.ranks,  # on a CPU they share one memory
    )
    sure = sum(size for name, size in found.items() if not name.startswith(("gathered", "whole")))
    there = memory_bytes() if on_cpu else this_machine(model).bytes_each
    if sure > there:
        raise NotHere(
            f"update_policy needs {sure / GIB:.0f} GiB for weights, gradients and moments alone and this machine has "
            f"{there / GIB:.0f} GiB {'of memory' if on_cpu else 'a GPU'}; set update.lora, raise update.ranks on more "
            "GPUs, or take a smaller model.name. See: grpo-rounds plan"
        )


def _capacity(stage: StageMemory, estimate: "Estimate", config: RunConfig) -> int:
    """Bytes that one process of a stage may take."""
    machine = estimate.machine
    if machine.device == "cuda":
        return machine.bytes_each
    processes = config.update.ranks if stage.stage == "update_policy" else 1
    return (machine.bytes_each - CPU_HELPERS) // processes


def plan_session(
    config: RunConfig,
    path: Path,
    *,
    machine: Machine | None,
    model_config: Path | None,
    mean_completion: int | None,
    tflops: float | None,
    as_json: bool,
    out: Console,
) -> None:
    """Print the estimate, then refuse what does not fit.

    Raises:
        UserError: a stage needs more than there is, or the model's config can't be had.
    """
    from flows.cli import echo_json
    from grpo_core.estimate.run import over

    estimate = make_plan(
        config,
        machine=machine,
        model_config=model_config,
        folders=(path.parent / "shapes", Path("configs/shapes")),
        mean_completion=mean_completion,
        tflops=tflops,
    )
    problem = over(estimate, config, lambda stage: _capacity(stage, estimate, config))
    if as_json:
        totals = {stage.stage: stage.total for stage in estimate.memory}
        echo_json(asdict(estimate) | {"bytes": totals, "fits": problem is None, "problem": problem})
    else:
        _print(estimate, config, out)
    refuse_too_many(config.update.ranks, estimate.machine)
    if problem:
        raise UserError(problem)
    free = shutil.disk_usage(".").free
    if machine is None and estimate.disk.models_at_most > free:
        raise UserError(
            f"The run keeps up to {estimate.disk.models_at_most / 1e9:.0f} GB of model files and the disk here has "
            f"{free / 1e9:.0f} GB free; lower retention.policies or retention.trainer_states, or run it elsewhere."
        )


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f}" if size >= GIB / 10 else f"{size / GIB:.2f}"


def hours(seconds: float) -> str:
    """A span in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"


def _print(estimate: "Estimate", config: RunConfig, out: Console) -> None:
    shape, lengths, disk = estimate.shape, estimate.lengths, estimate.disk
    trained = f", {shape.adapter / 1e6:,.1f} M of adapters trained" if shape.adapter else ""
    out.print(f"{config.model.name}: {shape.parameters / 1e6:,.0f} M parameters{trained}", markup=False)
    out.print(f"{estimate.machine.name}; {_gib(estimate.machine.bytes_each)} GiB", markup=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    each = "GPU" if estimate.machine.device == "cuda" else "process"
    for heading in ("stage", f"GiB a {each}", "of which", "TFLOP", "time"):
        table.add_column(heading, justify="left" if heading in ("stage", "of which") else "right")
    times = {time.stage: time for time in estimate.times}
    for stage in estimate.memory:
        parts = ", ".join(f"{name} {_gib(size)}" for name, size in stage.components.items())
        time = times.get(stage.stage)
        work = ("-", "-") if time is None else (f"{time.flops / 1e12:,.0f}", hours(time.seconds))
        table.add_row(stage.stage, _gib(stage.total), parts or "nothing on it", *work)
    out.print(table)
    lines = [
        (
            "a round",
            f"{estimate.rollouts:,} rollouts; prompts of {lengths.prompt_mean} tokens ({lengths.prompt_most} at most), "
            f"{estimate.prompt_tokens:,} in all; completions of {lengths.completion_mean} assumed "
            f"({lengths.completion_most} at most), {estimate.completion_tokens:,} in all "
            f"({estimate.completion_tokens_most:,} at most)",
        ),
        ("steps", f"{estimate.steps:,} optimiser steps a round at most, {estimate.steps * config.rounds:,} in the run"),
        (
            "disk",
            f"{disk.round_tables / 1e6:,.1f} MB of tables a round for good; a policy {disk.policy / 1e9:,.2f} GB, an "
            f"optimiser's state {disk.trainer_state / 1e9:,.2f} GB; at most {disk.run / 1e9:,.1f} GB for the run",
        ),
        ("time", f"about {hours(estimate.seconds)} for {config.rounds:,} rounds: an estimate, within a factor of two"),
        *(("note", note) for note in estimate.notes),
    ]
    for name, text in lines:
        out.print(f"{name:>8}  {escape(text)}", soft_wrap=True)


def summary_line(config: RunConfig) -> str | None:
    """The estimate for this machine in one line, or None where it can't be made."""
    from grpo_core.estimate.run import over

    try:
        estimate = make_plan(config)
    except Exception:  # an estimate never stops anything by its own failure
        return None
    worst = max(estimate.memory, key=lambda stage: stage.total)
    problem = over(estimate, config, lambda stage: _capacity(stage, estimate, config))
    fits = "" if problem is None else f"; {problem.rstrip('.')}"
    return (
        f"at most {_gib(worst.total)} GiB ({worst.stage}), about {hours(estimate.seconds)} in all, "
        f"{estimate.disk.run / 1e9:,.1f} GB of disk{fits}; more: grpo-rounds plan"
    )


def machine_given(count: int | None, gib: float | None, tflops: float | None) -> Machine | None:
    """The GPUs that the command line names; None: this machine.

    Raises:
        UserError: one of the two is missing.
    """
    if count is None and gib is None:
        return None
    if count is None or gib is None:
        raise UserError("--gpus and --gpu-memory go together: how many GPUs, and how many GiB each.")
    return gpus(count, int(gib * GIB), tflops=tflops)
