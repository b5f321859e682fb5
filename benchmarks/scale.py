"""What a round costs as it grows: ``python -m benchmarks.scale``.

A random Llama of a few million parameters; one of group size, prompt length, completion length and model size grows at
a time. Printed are seconds of rollouts and update beside the operations that they can't do without, each as a ratio to
the first row of its block: where the two grow alike, cost is as it should be. Medians of three; about ten minutes on
two cores.
"""

import argparse
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.stages import Batch, forward_operations, time_rollouts, time_update, update_operations
from grpo_core.estimate.shapes import shape_of
from grpo_core.tiny import byte_tokenizer


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    block: str
    label: str
    batch: Batch
    hidden: int = 256
    layers: int = 6


def cases() -> Iterator[Case]:
    """Four blocks; what grows, grows by two."""
    base = Batch(prompts=4, group=4, prompt_tokens=64, completion_tokens=64)
    for group in (4, 8, 16):
        yield Case("group size, prompts of 64 tokens", f"G {group}", replace(base, group=group))
    for group in (4, 8, 16):
        label = f"G {group}"
        yield Case("group size, prompts of 512 tokens", label, replace(base, group=group, prompt_tokens=512))
    for tokens in (64, 128, 256, 512):
        yield Case("prompt length", f"{tokens} tokens", replace(base, prompt_tokens=tokens))
    for tokens in (32, 64, 128, 256):
        yield Case("completion length", f"{tokens} tokens", replace(base, completion_tokens=tokens))
    for hidden, layers in ((128, 6), (256, 6), (256, 12), (512, 12)):
        yield Case("model", f"hidden {hidden}, {layers} layers", base, hidden, layers)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    chosen = parser.parse_args()
    out = Console()
    table = Table("", "rollouts, s", "ratio", "operations", "update, s", "ratio", "operations")
    tokenizer, block, first = byte_tokenizer(), "", (1.0, 1.0, 1.0, 1.0)
    for case in track(list(cases()), "cases", console=out, disable=not out.is_terminal):
        config = LlamaConfig(
            vocab_size=8192, hidden_size=case.hidden, intermediate_size=4 * case.hidden, num_hidden_layers=case.layers,
            num_attention_heads=case.hidden // 32, num_key_value_heads=case.hidden // 64, max_position_embeddings=4096,
            tie_word_embeddings=True,
        )  # fmt: skip
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        batch, shape = case.batch, shape_of(config)
        lengths = [(batch.prompt_tokens, [batch.completion_tokens] * batch.group)] * batch.prompts
        update = time_update(model, copy.deepcopy(model), batch.rollouts(8192), chosen.repetitions)
        rollouts = time_rollouts(model, tokenizer, batch, chosen.repetitions)
        found = (rollouts, forward_operations(shape, lengths), update, update_operations(shape, lengths))
        if case.block != block:
            block, first = case.block, found
            table.add_section()
            table.add_row(f"[bold]{block}[/bold]")
        ratios = [f"{value / start:.2f}" for value, start in zip(found, first, strict=True)]
        table.add_row(case.label, f"{rollouts:.2f}", *ratios[:2], f"{update:.2f}", *ratios[2:])
    out.print(table)


if __name__ == "__main__":
    main()
