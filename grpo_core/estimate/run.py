"""A whole run: every stage's bytes, a round's tokens, seconds and disk, for a config, a model and a machine."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from grpo_core.config import RunConfig
from grpo_core.estimate.disk import Disk, disk_bytes
from grpo_core.estimate.machine import Machine
from grpo_core.estimate.memory import (
    CPU_BASE,
    GPU_BASE,
    StageMemory,
    generation_memory,
    update_memory,
    vllm_memory,
)
from grpo_core.estimate.shapes import Shape, shape_of
from grpo_core.estimate.time import forward_flops, generation_seconds, update_seconds
from grpo_core.estimate.trace import Held
from grpo_core.estimate.work import Lengths, expected_form, largest_held, packed

_GIB = 2**30
_COMPILED_LAUNCH = 0.1  # of what transformers takes to start a layer: vLLM replays CUDA graphs; an assumption


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage's work: of a round, or of one evaluation."""

    stage: str
    flops: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of a run before it starts."""

    machine: Machine
    shape: Shape
    lengths: Lengths
    memory: list[StageMemory]
    times: list[StageTime]
    rollouts: int  # a round
    prompt_tokens: int  # a round, each prompt once
    completion_tokens: int  # a round, at the mean
    completion_tokens_most: int
    steps: int  # optimiser steps a round, at most
    evaluations: int  # in the run
    seconds: float  # of the run
    disk: Disk
    notes: list[str]  # what is not counted, and why


def estimate_run(config: RunConfig, model_config: Any, lengths: Lengths, machine: Machine) -> Estimate:
    """Put the formulas together.

    Args:
        model_config: of transformers, for ``config.model``.
        lengths: completions at most ``generation.max_new_tokens``.
        machine: of the device that ``config.model`` will take.

    Raises:
        ValueError, UserError: the model can't be built, or LoRA's targets are not in it.
    """
    return _Planner(config, model_config, lengths, machine).estimate()


class _Planner:
    """One run's settings, at hand for each part of the estimate."""

    def __init__(self, config: RunConfig, model_config: Any, lengths: Lengths, machine: Machine) -> None:
        self.config, self.model_config, self.lengths, self.machine = config, model_config, lengths, machine
        self.shape = shape_of(model_config, config.update.lora)
        self.on_cpu = machine.device == "cpu"
        wants_float32 = config.model.dtype == "float32" or (config.model.dtype == "auto" and self.on_cpu)
        self.compute = torch.float32 if wants_float32 else torch.bfloat16
        self.weight_bytes = self.compute.itemsize
        self.base = CPU_BASE if self.on_cpu else GPU_BASE
        self.notes: list[str] = []
        self.groups = config.data.prompts_per_round
        self.steps = config.update.epochs * min(config.update.minibatches, self.groups)

    def estimate(self) -> Estimate:
        config, lengths = self.config, self.lengths
        memory = [self._generate_memory(), self._score_memory(), self._update_memory(), self._evaluate_memory()]
        times = [self._generate_time(), self._update_time(), self._evaluate_time()]
        if config.cluster.address is not None:
            self.notes.append("the cluster's machines (cluster.address) are taken to be like the one planned for")
        rounds, every = config.rounds, config.evaluation.every
        evaluations = sum(number % every == 0 or number == rounds for number in range(rounds + 1))
        rollouts = self.groups * config.generation.group_size
        disk = disk_bytes(
            self.shape,
            rollouts=rollouts,
            completion_tokens=lengths.completion_mean,
            rounds=rounds,
            policies_kept=config.retention.policies,
            states_kept=config.retention.trainer_states + (config.promotion.go_back != "never"),
            kept_besides=1 + config.promotion.enabled,
            weight_bytes=self.weight_bytes,
            steps=self.steps,
            checkpoint_steps=config.update.checkpoint_steps,
        )
        return Estimate(
            machine=self.machine,
            shape=self.shape,
            lengths=lengths,
            memory=memory,
            times=times,
            rollouts=rollouts,
            prompt_tokens=self.groups * lengths.prompt_mean,
            completion_tokens=rollouts * lengths.completion_mean,
            completion_tokens_most=rollouts * lengths.completion_most,
            steps=self.steps,
            evaluations=evaluations,
            seconds=rounds * (times[0].seconds + times[1].seconds) + evaluations * times[2].seconds,
            disk=disk,
            notes=self.notes,
        )

    def _engine_memory(self, stage: str, prompts: int, rows: int) -> StageMemory:
        generation, lengths = self.config.generation, self.lengths
        if generation.engine == "server":
            return StageMemory(stage, self.machine.device, {})
        if generation.engine == "vllm":
            return StageMemory(stage, self.machine.device, self._vllm_memory())
        found = generation_memory(
            self.shape,
            prompts=prompts,
            rows=rows,
            prompt_tokens=lengths.prompt_most,
            completion_tokens=lengths.completion_most,
            weight_bytes=self.weight_bytes,
            base=self.base,
        )
        return StageMemory(stage, self.machine.device, found)

    def _vllm_memory(self) -> dict[str, int]:
        settings = self.config.generation.vllm
        gib = settings.kv_cache_gib or (1 if self.on_cpu else None)
        found = vllm_memory(
            self.shape,
            device_bytes=self.machine.bytes_each,
            memory_share=settings.memory_share,
            tensor_parallel=settings.tensor_parallel,
            weight_bytes=self.weight_bytes,
            cache_bytes=None if gib is None else int(gib * _GIB),
            row_bytes=(self.lengths.prompt_most + self.lengths.completion_most)
            * self.shape.key_value_numbers
            * self.weight_bytes,
        )
        return found | {"process": self.base}

    def _generate_memory(self) -> StageMemory:
        generation = self.config.generation
        prompts = min(generation.shard_groups, self.groups)
        return self._engine_memory("generate_rollouts", prompts, prompts * generation.group_size)

    def _evaluate_memory(self) -> StageMemory:
        prompts = self._held_out(self.config.evaluation.batch_prompts)
        return self._engine_memory("evaluate_policy", prompts, prompts * max(1, self.config.evaluation.samples))

    def _held_out(self, most: int | None = None) -> int:
        data = self.config.data
        limits = [source.limit for source in data.eval_sources]
        if None in limits and most is None:
            self.notes.append("held-out sources without a limit count as 500 prompts in the time")
        found = data.eval_size + sum(500 if limit is None else limit for limit in limits)
        return found if most is None else min(found, most)

    def _score_memory(self) -> StageMemory:
        reward = self.config.reward
        names = {component.reward for component in reward.components.values()} or {reward.name}
        found = {"process": self.base} if self.on_cpu else {}
        if "logprob" in names:
            found["weights"] = self.shape.parameters * self.weight_bytes
        if "reward_model" in names:
            self.notes.append("the reward model's own memory is not counted")
        return StageMemory("score_rewards", self.machine.device, found)

    def _update_memory(self) -> StageMemory:
        update = self.config.update
        held: Held | None = None
        groups = -(-self.groups // min(update.minibatches, self.groups))
        try:
            held = largest_held(
                self.model_config,
                update,
                groups,
                self.config.generation.group_size,
                self.lengths,
                device=self.machine.device,
                compute=self.compute,
            )
        except Exception as error:  # an architecture that looks at values can't be traced: the rest is still known
            self.notes.append(f"activations of a micro-batch are not counted ({type(error).__name__} in tracing it)")
        found = update_memory(
            self.shape,
            held,
            compute_bytes=self.weight_bytes,
            base=self.base,
            on_cpu=self.on_cpu,
            ranks=update.ranks,
        )
        if self.config.generation.engine == "vllm" and self.config.generation.vllm.keep_alive and not self.on_cpu:
            found["kept engine"] = sum(self._vllm_memory().values()) - self.base
        return StageMemory("update_policy", self.machine.device, found)

    def _engine_time(self, stage: str, groups: int, prompts: int, each: int) -> StageTime:
        generation, lengths = self.config.generation, self.lengths
        engines, rows, rates = 1, prompts * each, self.machine.rates
        if generation.engine == "vllm":
            settings = generation.vllm
            engines = settings.engines or max(1, self.machine.devices // settings.tensor_parallel)
            rates = replace(rates, launch=rates.launch * _COMPILED_LAUNCH)
            cache = self._vllm_memory()["KV cache"] * settings.tensor_parallel
            row = (lengths.prompt_most + lengths.completion_mean) * self.shape.key_value_numbers * self.weight_bytes
            rows = max(1, min(rows, settings.max_sequences, cache // row))
        batches = -(-groups * each // rows)
        work, seconds = generation_seconds(
            self.shape,
            rates,
            batches=batches,
            prompts=max(1, rows // each),
            rows=rows,
            prompt_tokens=lengths.prompt_mean,
            completion_tokens=lengths.completion_mean,
            steps=lengths.completion_most,
            weight_bytes=self.weight_bytes,
            devices=engines,
        )
        return StageTime(stage, work, seconds)

    def _generate_time(self) -> StageTime:
        generation = self.config.generation
        prompts = min(generation.shard_groups, self.groups)
        return self._engine_time("generate_rollouts", self.groups, prompts, generation.group_size)

    def _evaluate_time(self) -> StageTime:
        evaluation, prompts = self.config.evaluation, self._held_out()
        batch = min(evaluation.batch_prompts, prompts)
        found = [self._engine_time("evaluate_policy", prompts, batch, each) for each in (1, evaluation.samples) if each]
        return StageTime("evaluate_policy", sum(t.flops for t in found), sum(t.seconds for t in found))

    def _update_time(self) -> StageTime:
        update, lengths = self.config.update, self.lengths
        form = expected_form(self.model_config, lengths.prompt_most + lengths.completion_most, self.machine.device)
        minibatches = min(update.minibatches, self.groups)
        batches = packed(
            form,
            update.microbatch_tokens(self.machine.device),
            -(-self.groups // minibatches),
            self.config.generation.group_size,
            lengths.prompt_mean,
            lengths.completion_mean,
        )
        again = update.old_logprobs == "trainer" or update.top_entropy < 1 or update.ppo.mixes
        work, seconds = update_seconds(
            [forward_flops(self.shape, batch, form) for batch in batches] * minibatches,
            self.machine.rates,
            ranks=update.ranks,
            passes_before=(update.kl_coef > 0) + again,
            epochs=update.epochs,
            share_after=min(1.0, update.direction_groups / self.groups),
            recomputed=update.gradient_checkpointing,
            adapters_only=update.lora is not None,
        )
        return StageTime("update_policy", work, seconds)


def over(estimate: Estimate, config: RunConfig, capacity: Callable[[StageMemory], int]) -> str | None:
    """The stage that takes most over what there is, in one sentence with the keys that would mend it; None: all fit."""
    worst = max(estimate.memory, key=lambda stage: stage.total - capacity(stage))
    most = capacity(worst)
    if worst.total <= most:
        return None
    where = "a GPU" if worst.device == "cuda" else "this machine's memory"
    return (
        f"{worst.stage} needs {worst.total / _GIB:.1f} GiB and {where} has {most / _GIB:.1f} GiB for it; "
        f"{', or '.join(_mends(worst, estimate, config))}."
    )


def _mends(stage: StageMemory, estimate: Estimate, config: RunConfig) -> list[str]:
    update, generation, found = config.update, config.generation, stage.components
    if stage.stage == "update_policy":
        states = sum(found.get(name, 0) for name in ("weights", "gradients", "moments"))
        mends = []
        if stage.total - states > stage.total // 4:
            mends.append(f"lower update.tokens_per_microbatch (now {update.microbatch_tokens(stage.device)})")
            if not update.gradient_checkpointing:
                mends.append("set update.gradient_checkpointing to true")
        if states > stage.total // 4:
            if stage.device == "cuda" and update.ranks < estimate.machine.devices:
                mends.append(f"set update.ranks to {estimate.machine.devices}")
            elif stage.device == "cuda":
                mends.append("raise update.ranks on more GPUs")
            if update.lora is None:
                mends.append("set update.lora to {}")
        return mends or ["take a smaller model.name"]
    if generation.engine == "vllm":
        return ["raise generation.vllm.tensor_parallel", "lower generation.vllm.memory_share or kv_cache_gib"]
    if stage.stage == "score_rewards":
        return ["choose a reward without a model of its own (reward.name)"]
    if found["weights"] > stage.total // 2:
        return ["set generation.engine to vllm with generation.vllm.tensor_parallel", "take a smaller model.name"]
    keys = {
        "generate_rollouts": "generation.shard_groups or generation.max_new_tokens",
        "evaluate_policy": "evaluation.batch_prompts, evaluation.samples or generation.max_new_tokens",
    }
    return [f"lower {keys[stage.stage]}"]
