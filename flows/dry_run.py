"""``train --dry-run``: check a config against the world and say what a run of it would do, without writing anything."""

from rich.console import Console
from rich.markup import escape

from flows.preflight import check_config
from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from grpo_core.models import resolve_device


def describe(config: RunConfig, folder: str, out: Console) -> None:
    """Print the amounts of work in a run. What can't be reached from here (a hub, say) is named, not hidden.

    Raises:
        UserError: the config can't run anywhere; what is only missing on this machine is printed as a warning.
    """
    data, generation, update = config.data, config.generation, config.update
    rollouts = data.prompts_per_round * generation.group_size
    steps = update.epochs * min(update.minibatches, data.prompts_per_round)
    evaluations = sum(n % config.evaluation.every == 0 or n == config.rounds for n in range(config.rounds + 1))
    lines = [
        ("run", f"{config.name} in {folder}"),
        ("model", f"{config.model.name} on {resolve_device(config.model)}"),
        ("data", f"{data.source}, {data.prompts_per_round} prompts a round, {data.eval_size} held out"),
        ("rollouts", f"{generation.group_size} a prompt, {rollouts:,} a round, {rollouts * config.rounds:,} in all"),
        ("tokens", f"at most {rollouts * generation.max_new_tokens:,} generated a round"),
        ("update", f"{steps} optimiser steps a round, {steps * config.rounds:,} in all; lr {update.learning_rate:g}"),
        ("objective", f"clip {update.clip_low:g}/{update.clip_high:g}, KL coefficient {update.kl_coef:g}"),
        ("evaluation", f"{evaluations} times, greedy and {config.evaluation.samples} samples a prompt"),
        ("rounds", f"{config.rounds:,}"),
    ]
    for name, text in lines:
        out.print(f"{name:>11}  {escape(text)}", soft_wrap=True)
    try:
        check_config(config, folder)
    except UserError as problem:
        out.print(
            f"\nThe config is valid, but this machine can't run it as it stands: {escape(str(problem))}", soft_wrap=True
        )
        return
    out.print("\nThe config is valid and this machine has what it needs. Nothing was written.")
