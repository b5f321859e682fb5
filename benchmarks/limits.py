"""How near each stage comes to what the machine can do: ``python -m benchmarks.limits``.

The limit is the rate of one large float32 matrix product, measured between the stages. What is counted of a stage are
only the operations that it can't do without: each prompt once for its group, no padding, no pair of tokens that
attention hides, logits of completion tokens alone. The work: SmolLM2-135M, 16 prompts, 8 completions each, KL included.
Medians of three; about six minutes on two cores.
"""

import argparse
import copy

from rich.console import Console
from rich.table import Table

from benchmarks.stages import Batch, forward_operations, matmul_rate, time_rollouts, time_update, update_operations
from grpo_core.estimate.shapes import shape_of
from grpo_core.models import ModelConfig, load_source_model


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument("--completion-tokens", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=3)
    chosen = parser.parse_args()
    model, tokenizer = load_source_model(ModelConfig(), seed=0)
    model.set_attn_implementation("sdpa")
    shape = shape_of(model.config)
    reference = copy.deepcopy(model)
    batch = Batch(16, 8, chosen.prompt_tokens, chosen.completion_tokens)
    lengths = [(batch.prompt_tokens, [batch.completion_tokens] * batch.group)] * batch.prompts
    before = matmul_rate()
    update = time_update(model, reference, batch.rollouts(model.config.vocab_size), chosen.repetitions)
    between = matmul_rate()
    rollouts = time_rollouts(model, tokenizer, batch, chosen.repetitions)
    rate = max(before, between, matmul_rate())
    table = Table("stage", "seconds", "necessary GFLOP", "GFLOP/s", f"of {rate / 1e9:.0f} GFLOP/s")
    for name, seconds, operations in (
        ("update", update, update_operations(shape, lengths)),
        ("rollouts", rollouts, forward_operations(shape, lengths)),
    ):
        reached = operations / seconds
        cells = (f"{seconds:.1f}", f"{operations / 1e9:,.0f}", f"{reached / 1e9:.0f}", f"{reached / rate:.0%}")
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
