"""``train --dry-run``: check a config against the world and say what a run of it would do, without writing anything."""

from rich.console import Console
from rich.markup import escape

from flows.changes import describe_changes
from flows.plan import summary_line
from flows.preflight import checks
from grpo_core.config import RunConfig
from grpo_core.errors import NotHere
from grpo_core.policy.config import UpdateConfig
from grpo_core.prompts.rewards import source_rewards


def _objective(update: UpdateConfig) -> str:
    bounds = f" {update.clip_low:g}/{update.clip_high:g}" if update.clip in ("ppo", "cispo") else ""
    levels = f"{update.ratio_level} ratio, {update.aggregation} aggregation"
    return f"clip {update.clip}{bounds}, {levels}, KL coefficient {update.kl_coef:g} in the {update.kl_in}"


def _data(config: RunConfig) -> list[tuple[str, str]]:
    """The mix, a line a source: its label, its share of a round, and which reward scores its rows."""
    data, others = config.data, source_rewards(config.data, config.reward)
    own = "components " + ", ".join(config.reward.components) if config.reward.components else config.reward.name
    total = sum(source.weight or 0.0 for source in data.mix)
    lines = [("data", f"{len(data.mix)} source{'s'[: len(data.mix) != 1]}, {data.prompts_per_round} prompts a round")]
    for kind, sources in (("source", data.mix), ("held out", data.eval_sources)):
        for source in sources:
            name = source.label if source.label == source.source else f"{source.label} ({source.source})"
            share = f"weight {source.weight:g} ({source.weight / total:.0%})" if source.weight else "by its rows"
            reward = others[source.label].name if source.label in others else own
            parts = [name, *([share] if kind == "source" and len(data.mix) > 1 else []), f"reward {reward}"]
            if kind == "source" and source.from_round:
                parts.append(f"from round {source.from_round}")
            lines.append((kind, ", ".join(parts)))
    return [*lines, ("held out", f"{data.eval_size} of the training rows")]


def describe(config: RunConfig, folder: str, out: Console) -> None:
    """Print the amounts of work in a run, and what this machine lacks for it (a GPU, a way to the hub).

    Raises:
        UserError: the config can't run anywhere.
    """
    data, generation, update = config.data, config.generation, config.update
    rollouts = data.prompts_per_round * generation.group_size
    steps = update.epochs * min(update.minibatches, data.prompts_per_round)
    evaluations = sum(n % config.evaluation.every == 0 or n == config.rounds for n in range(config.rounds + 1))
    lines = [
        ("run", f"{config.name} in {folder}"),
        ("model", f"{config.model.name} on {config.model.device} device, {config.model.dtype} precision"),
        *_data(config),
        ("rollouts", f"{generation.group_size} a prompt, {rollouts:,} a round, {rollouts * config.rounds:,} in all"),
        ("tokens", f"at most {rollouts * generation.max_new_tokens:,} generated a round"),
        ("update", f"{steps} optimiser steps a round, {steps * config.rounds:,} in all; lr {update.learning_rate:g}"),
        ("objective", _objective(update)),
        ("evaluation", f"{evaluations} times, greedy and {config.evaluation.samples} samples a prompt"),
        ("rounds", f"{config.rounds:,}"),
    ]
    for name, text in lines:
        out.print(f"{name:>11}  {escape(text)}", soft_wrap=True)
    for line in describe_changes(folder, config):
        out.print(escape(line), soft_wrap=True)
    lacking = []
    for check in checks(config, folder):
        try:
            check()
        except NotHere as error:
            lacking.append(str(error))
    if not lacking and (plan := summary_line(config)):
        out.print(f"{'plan':>11}  {escape(plan)}", soft_wrap=True)
    for problem in lacking:
        out.print(f"\nNot on this machine: {escape(problem)}", soft_wrap=True)
    verdict = "but this machine can't run it as it stands" if lacking else "and this machine has what it needs"
    out.print(f"\nThe config is valid, {verdict}. Nothing was written.")
