"""Rounds of TRL's GRPOTrainer until held-out answers are right often enough."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TrainerCallback

from benchmarks.learning.tell import Curve, enough
from benchmarks.peers.trl import build_trainer
from benchmarks.peers.work import Work, prompt_ids, told_work
from grpo_core.generation.engine import Request, SamplingParams
from grpo_core.generation.transformers_engine import TransformersEngine


class Watch(TrainerCallback):  # type: ignore[misc]
    """Takes the time of each round and evaluates after it; evaluation is not counted."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.curve: Curve | None = None
        self._began = 0.0

    def on_train_begin(self, *_: Any, model: Any, processing_class: Any, **__: Any) -> None:
        self.curve = Curve(self._accuracy(model, processing_class))
        self._began = time.perf_counter()

    def on_step_end(self, _: Any, state: Any, control: Any, *, model: Any, processing_class: Any, **__: Any) -> None:
        if state.global_step % self.work.minibatches:
            return
        assert self.curve is not None
        seconds = time.perf_counter() - self._began
        self.curve.add(seconds, self.work.prompts * self.work.group, self._accuracy(model, processing_class))
        control.should_training_stop = enough(self.curve)
        self._began = time.perf_counter()

    def _accuracy(self, model: Any, tokenizer: Any) -> float:
        sums = self.work.held_out()
        asked = [Request(f"e{n}", ids, [0]) for n, ids in enumerate(prompt_ids(tokenizer, sums))]
        was_training = model.training
        model.eval()
        groups = TransformersEngine(model, tokenizer).generate(asked, SamplingParams(0.0, 1.0, 0, self.work.new_tokens))
        model.train(was_training)
        rewards = self.work.rewards([one.text for (one,) in groups], sums)
        return sum(rewards) / len(rewards)


def main() -> None:
    """Train until it is enough, or for ``work.rounds`` rounds."""
    work = told_work()
    watch = Watch(work)
    with TemporaryDirectory() as scratch:
        build_trainer(work, Path(scratch), [watch]).train()
    assert watch.curve is not None
    watch.curve.tell()


if __name__ == "__main__":
    main()
