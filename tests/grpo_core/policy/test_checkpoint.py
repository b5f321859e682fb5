from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from support import loads

from grpo_core import interrupt
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.optimizer import TrainerState, new_trainer_state
from grpo_core.policy.ppo_config import PPOConfig
from grpo_core.policy.update import UpdateConfig, UpdateMetrics, update_policy


class Folders:
    """Checkpoints in a plain folder; asks for a stop once so many steps are done."""

    def __init__(self, folder: Path, every: int, stop_after: int = 0) -> None:
        self.folder, self.every, self.stop_after = folder, every, stop_after
        self.saved: list[int] = []

    @contextmanager
    def newest(self) -> Iterator[Path | None]:
        yield max(self.folder.glob("*"), default=None)

    def due(self, steps_done: int, steps: int) -> bool:
        if steps_done == self.stop_after:
            interrupt.ask()
        return steps_done < steps and (steps_done % self.every == 0)

    def save(self, steps_done: int, produce: Callable[[Path], None]) -> None:
        target = self.folder / f"{steps_done:03d}"
        target.mkdir(parents=True)
        produce(target)
        self.saved.append(steps_done)


@pytest.fixture(autouse=True)
def nobody_asks() -> Iterator[None]:
    yield
    interrupt.ask(False)


def outcome(model: Any, state: TrainerState, metrics: UpdateMetrics) -> dict[str, Any]:
    tensors = {f"weight.{name}": weight.detach().clone() for name, weight in model.named_parameters()}
    tensors |= {f"first.{name}": value for name, value in state.exp_avg.items()}
    tensors |= {f"second.{name}": value for name, value in state.exp_avg_sq.items()}
    if state.value is not None:
        tensors |= {f"value.{name}": weight for name, weight in state.value.head.state_dict().items()}
        tensors |= {f"value.first.{name}": moment for name, moment in state.value.exp_avg.items()}
        tensors |= {f"value.second.{name}": moment for name, moment in state.value.exp_avg_sq.items()}
        tensors |= {"value.step": torch.tensor(state.value.step)}
    return tensors | {"rng": state.rng_cpu, "step": torch.tensor(state.step), "metrics": metrics.as_dict()}


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]) if isinstance(value, torch.Tensor) else value == two[name], name


@pytest.mark.parametrize(("stop_after", "every"), [(1, 1), (3, 2), (5, 2), (1, 4)])
@pytest.mark.parametrize(("old_logprobs", "alpha"), [("sampler", 1.0), ("trainer", 1.0), ("trainer", 0.3)])
def test_stopped_between_steps_it_ends_with_the_same_bits(
    build: Any, rollouts_of: Any, tmp_path: Path, stop_after: int, every: int, old_logprobs: str, alpha: float
) -> None:
    ppo = PPOConfig(alpha_start=alpha, alpha_end=alpha)
    config = UpdateConfig(
        learning_rate=1e-2, epochs=3, minibatches=2, old_logprobs=old_logprobs, warmup_steps=4, ppo=ppo
    )

    def run(folders: Folders | None) -> dict[str, Any]:
        model, reference = build(), build(seed=1)
        state = new_trainer_state(model, seed=0)
        rollouts = [replace(r, reward=number % 3 / 2) for number, r in enumerate(rollouts_of())]
        steps: list[pa.Table] = []
        reference_tables: list[pa.Table] = []
        metrics = update_policy(
            model, loads(reference), rollouts, state, config, temperature=1.0, seed=3, round_number=1,
            checkpoints=folders, on_step=steps.append, on_reference=reference_tables.append,
        )  # fmt: skip
        return outcome(model, state, metrics) | {
            "steps": pa.concat_tables(steps).to_pylist(),
            "reference": pa.concat_tables(reference_tables).to_pylist(),
        }

    alone = run(None)
    first = Folders(tmp_path / "at", every, stop_after)
    with pytest.raises(interrupt.Stopped):
        run(first)
    interrupt.ask(False)
    second = Folders(tmp_path / "at", every)
    assert_equal(alone, run(second))
    done_before = max(first.saved, default=0)
    assert second.saved == [step for step in range(1, 6) if step % every == 0 and step > done_before]


def test_a_checkpoint_holds_what_was_recorded_before_step_one(build: Any, rollouts_of: Any, tmp_path: Path) -> None:
    # After a step the policy's own logprobs are others, so the old ones can only come from the checkpoint.
    config = UpdateConfig(learning_rate=1e-1, epochs=2, old_logprobs="trainer", kl_coef=0.1)
    rollouts: list[TrainingRollout] = rollouts_of()
    folders = Folders(tmp_path, 1, stop_after=1)
    model, state = build(), new_trainer_state(build(), seed=0)
    with pytest.raises(interrupt.Stopped):
        update_policy(
            model,
            lambda: build(seed=1),
            rollouts,
            state,
            config,
            temperature=1.0,
            seed=0,
            round_number=1,
            checkpoints=folders,
        )
    interrupt.ask(False)
    # No reference and no first-pass logprobs are needed to go on.
    metrics = update_policy(
        build(seed=5), lambda: pytest.fail("the reference was loaded again"), rollouts,
        new_trainer_state(build(), seed=9), config, temperature=1.0, seed=0, round_number=1,
        checkpoints=Folders(tmp_path, 1),
    )  # fmt: skip
    assert metrics.steps == 2
    assert metrics.ratio_max is not None
    assert metrics.ratio_max > 1.0
