"""Stage: rollouts and rewards of a round together, with further prompts while too many groups have no variance.

It stands in the place of ``generate_rollouts`` and ``score_rewards`` where ``data.dynamic_sampling`` is on: which
prompts are drawn depends on rewards. After the round's own shards it takes those of the plan's reserve, one by one,
until enough groups have rewards that differ, or the reserve is used up (dynamic sampling, DAPO, Yu et al. 2025).
"""

import math
from typing import Any

import pyarrow as pa
from prefect import task

from grpo_core import interrupt
from grpo_core.schemas import Progress, shifted
from tasks.cluster import is_on_cluster
from tasks.generate_rollouts import finished_rollouts, generation_inputs, generation_key
from tasks.rollout_shards import Shard, open_generator, shards_of
from tasks.run import Run, round_folder
from tasks.score_rewards import past_smoothing, reward_key, scoring_inputs
from tasks.score_round import open_scorer
from tasks.stage import TASK_OPTIONS, PerArtifact, Stage, Writers, execute
from tasks.start_policy import start_of

STAGE_VERSION = 1


def is_on(run: Run) -> bool:
    return run.config.data.dynamic_sampling.max_extra > 0


def live_groups(rewards: pa.Table) -> int:
    """Groups that have two rewards that differ; rewards that are null are none."""
    found: dict[str, set[float]] = {}
    for prompt_id, reward in zip(rewards["prompt_id"].to_pylist(), rewards["reward"].to_pylist(), strict=True):
        if reward is not None:
            found.setdefault(prompt_id, set()).add(reward)
    return sum(len(rewards) > 1 for rewards in found.values())


def _compute(run: Run, round_number: int, writers: Writers, progress: Progress) -> PerArtifact:
    rollouts, rewards, config = writers["rollouts"], writers["rewards"], run.config
    group_size, wanted = config.generation.group_size, config.data.prompts_per_round
    shards = shards_of(run, round_number)
    needed = math.ceil(config.data.dynamic_sampling.min_live * wanted)
    total = group_size * sum(len(shard.prompt_ids) for shard in shards)
    own = [shard for shard in shards if not shard.reserve]
    pending = [shard for shard in own if not rollouts.has(shard.name)]
    done = group_size * sum(len(shard.prompt_ids) for shard in own if shard not in pending)
    live, used = 0, list[Shard]()
    with (
        open_generator(run, round_number, rollouts) as generator,
        open_scorer(
            run, round_number, config.reward, rewards, past_smoothing(run, round_number), group_size * wanted
        ) as scorer,
    ):
        own_made = generator.generate(pending, shifted(progress, done, total))
        done = group_size * sum(len(shard.prompt_ids) for shard in own)
        if is_on_cluster(run, rewards):
            own_made = iter(list(own_made))
            scorer.score_ahead([shard.name for shard in own])
        for shard in shards:
            is_there = rollouts.has(shard.name)
            # What was drawn before a kill stays: a check that failed then and succeeds now would leave it unscored.
            if shard.reserve and live >= needed and not is_there:
                break
            if not is_there:  # the round's own may be made side by side; who is drawn depends on all before
                next(generator.generate([shard], shifted(progress, done, total)) if shard.reserve else own_made)
            live += live_groups(scorer.score(shard.name))
            used.append(shard)
            if shard.reserve:
                done += group_size * len(shard.prompt_ids)
                progress(done, total)
            interrupt.safe_point()
        generator.ensure_canary()
        scored = scorer.finish()
    extra = sum(len(shard.prompt_ids) for shard in used if shard.reserve)
    drawn = {"extra_prompts": float(extra), "live_groups": float(live), "is_full": float(live >= needed)}
    return PerArtifact({"rollouts": {**finished_rollouts(rollouts), **drawn}, "rewards": scored})


STAGE = Stage(
    name="sample_groups",
    version=STAGE_VERSION,
    # The rewards come last: they are what the rest of the round waits for.
    folders=lambda n: {"rollouts": round_folder(n, "rollouts"), "rewards": round_folder(n, "rewards")},
    config=lambda run: {
        **generation_key(run),
        **reward_key(run.config.reward),
        "dynamic_sampling": run.config.data.dynamic_sampling.model_dump(mode="json"),
        "prompts_per_round": run.config.data.prompts_per_round,
    },
    inputs=lambda run, n: {**generation_inputs(run, n), **scoring_inputs(run, n)},
    compute=_compute,
    models=lambda run, n: [round_folder(start_of(run, n), "policy")],
)


@task(name=STAGE.name, **TASK_OPTIONS)
def sample_groups(run: Run, round_number: int, stage: str, key: str) -> dict[str, Any]:
    """The round's rollouts and rewards; cached by ``key``."""
    return execute(STAGE, run, round_number)
