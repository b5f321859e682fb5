"""Stage: move the policy towards the rollouts that beat their own group.

Leaves a policy, the optimiser's state, a table of steps (which rollouts each optimiser step took, and the share that
each had in it), and the logprobs that the KL's reference gives the rollouts.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from prefect import task

from grpo_core.gates import Factors
from grpo_core.models import resolve_device
from grpo_core.policy.batching import TrainingRollout
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.job import UpdateJob, run_job
from grpo_core.policy.launch import run_ranks
from grpo_core.schemas import ADVANTAGES, ROLLOUTS, Progress
from tasks import initial_policy
from tasks.apply_gates import factors_digest, read_factors
from tasks.checkpoints import UpdateCheckpoints
from tasks.run import Run, round_folder
from tasks.stage import TASK_OPTIONS, Stage, Writers, execute, input_digest
from tasks.start_policy import start_of

STAGE_VERSION = 3
STEPS_FILE = "steps.parquet"
REFERENCE_FILE = "reference.parquet"


def _config(run: Run) -> Mapping[str, Any]:
    config = run.config
    unread = {"checkpoint_steps", "direction_groups", "ranks", "gradient_checkpointing"}
    unread |= (set() if config.update.ppo.mixes else {"ppo"}) | (set() if config.update.lora else {"lora"})
    length = {"generation.max_new_tokens": config.generation.max_new_tokens}
    return {
        "update": config.update.model_dump(mode="json", exclude=unread),
        "generation.temperature": config.generation.temperature,
        "model.dtype": config.model.dtype,
        "seed": config.seed,
        **(length if config.update.aggregation == "constant" else {}),
    }


def _inputs(run: Run, round_number: int) -> Mapping[str, str]:
    start = start_of(run, round_number)
    inputs = {
        "rollouts": input_digest(run, round_folder(round_number, "rollouts")),
        "advantages": input_digest(run, round_folder(round_number, "advantages")),
        "policy": input_digest(run, round_folder(start, "policy")),
        "reference": input_digest(run, initial_policy.FOLDER),
        "gates": factors_digest(run, round_number),
    }
    if start > 0:
        inputs["trainer_state"] = input_digest(run, round_folder(start, "trainer_state"))
    return inputs


def _effective(config: UpdateConfig, factors: Factors) -> UpdateConfig:
    """The round's own settings: the config's, with what the gates made of them."""
    return config.model_copy(
        update={
            "learning_rate": config.learning_rate * factors.learning_rate,
            "kl_coef": config.kl_coef * factors.kl,
        }
    )


def _models(run: Run, round_number: int) -> list[str]:
    start = start_of(run, round_number)
    policy = round_folder(start if run.config.update.lora is None else 0, "policy")
    return [policy, round_folder(start, "trainer_state")] if start > 0 else [policy]


def training_rollouts(run: Run, round_number: int) -> list[TrainingRollout]:
    """The round's rollouts with their advantages, joined by key; those out of the loss are left out.

    A round with a PPO part takes every rollout with a reward, dead groups too.
    """
    advantages = run.artifact(round_folder(round_number, "advantages")).read_table(ADVANTAGES)
    wanted = pc.field("in_loss")
    if run.config.update.ppo.alpha(round_number) < 1:
        wanted = wanted | pc.field("reward").is_valid()
    columns = ["rollout_id", "advantage", "in_loss", "reward"]
    found = {row["rollout_id"]: row for row in advantages.filter(wanted).select(columns).to_pylist()}
    rollouts = run.artifact(round_folder(round_number, "rollouts")).read_table(ROLLOUTS)
    return [
        TrainingRollout(
            prompt_id=row["prompt_id"],
            prompt_ids=row["prompt_ids"],
            completion_ids=row["completion_ids"],
            old_logprobs=row["logprobs"],
            advantage=found[row["rollout_id"]]["advantage"],
            in_loss=found[row["rollout_id"]]["in_loss"],
            truncated=row["finish_reason"] == "length",
            reward=found[row["rollout_id"]]["reward"],
            rollout_id=row["rollout_id"],
            sample_index=row["sample_index"],
        )
        for row in rollouts.to_pylist()
        if row["rollout_id"] in found
    ]


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> Mapping[str, float]:
    config, start = run.config, start_of(run, round_number)
    update = _effective(config.update, read_factors(run, round_number))
    fingerprint = writers["policy"].fingerprint
    checkpoints = UpdateCheckpoints(run, round_number, fingerprint, update.checkpoint_steps)
    rollouts = training_rollouts(run, round_number)
    with ExitStack() as stack:

        def local(number: int, kind: str) -> Path:
            return stack.enter_context(run.store.local_folder(round_folder(number, kind)))

        # An adapter's base is the first policy in every round, and the reference as well.
        has_reference = update.kl_coef > 0 and update.lora is None
        job = UpdateJob(
            policy=stack.enter_context(run.local_policy(start if update.lora is None else 0)),
            reference=stack.enter_context(run.local_policy(0)) if has_reference else None,
            trainer_state=local(start, "trainer_state") if start > 0 else None,
            update=update,
            model=config.model,
            temperature=config.generation.temperature,
            max_new_tokens=config.generation.max_new_tokens,
            seed=config.seed,
            round_number=round_number,
        )
        if update.ranks == 1:
            trained = run_job(job, rollouts, resolve_device(config.model), checkpoints, progress)
        else:
            trained = run_ranks(job, rollouts, checkpoints, progress, stack.enter_context(_scratch(run, round_number)))
        writers["reference"].write_table(REFERENCE_FILE, trained.reference)
        writers["steps"].write_table(STEPS_FILE, trained.steps)
        writers["trainer_state"].write_folder(trained.save_trainer_state)
        writers["policy"].write_folder(trained.save_policy)
    return trained.metrics.as_dict()


@contextmanager
def _scratch(run: Run, round_number: int) -> Iterator[Path]:
    """A folder for the ranks' files, beside where they go; hidden, so that what a kill leaves is swept."""
    beside = run.store.path(round_folder(round_number, "policy"))  # of a branch the branch's own
    parent = Path(beside).parent if run.store.is_local else None
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-ranks-", dir=parent) as folder:
        yield Path(folder)


STAGE = Stage(
    name="update_policy",
    version=STAGE_VERSION,
    # The policy comes last: it is what the next round waits for.
    folders=lambda n: {name: round_folder(n, name) for name in ("reference", "steps", "trainer_state", "policy")},
    config=_config,
    inputs=_inputs,
    compute=_compute,
    models=_models,
    records=("reference", "steps"),
)


@task(name=STAGE.name, **TASK_OPTIONS)
def update_policy(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's policy; cached by ``key``."""
    return execute(STAGE, run, round_number)
