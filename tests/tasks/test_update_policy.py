from collections.abc import Callable

import pyarrow as pa
import pytest

from grpo_core.artifacts import ArtifactWriter
from grpo_core.config import RunConfig
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import ADVANTAGES, ROLLOUTS
from tasks.run import Run, create_or_open, round_folder
from tasks.update_policy import STAGE, training_rollouts

MIXED = {"alpha_start": 0.5, "alpha_end": 1.0, "alpha_rounds": 2}  # alpha 0.5 in round 1, 1 in round 2

ROWS = [  # prompt, reward, in_loss, finish_reason
    ("live", 1.0, True, "stop"),
    ("live", 0.0, True, "length"),
    ("live", None, False, "stop"),
    ("dead", 0.25, False, "stop"),
    ("dead", 0.25, False, "length"),
]
ANY = {pa.string(): "", pa.int32(): 0, pa.int64(): 0, pa.uint64(): 0, pa.float32(): 1.0, pa.float64(): 0.0}


def filled(schema: pa.Schema, values: dict[str, object]) -> dict[str, object]:
    return {field.name: values.get(field.name, ANY.get(field.type, False)) for field in schema}


@pytest.fixture
def run_of(tmp_path) -> Callable[[dict[str, object]], Run]:
    """Makes a run of two rounds with rollouts and advantages on disk, by the settings of update.ppo."""

    def make(ppo: dict[str, object]) -> Run:
        run, _ = create_or_open(str(tmp_path / "run"), RunConfig(update={"ppo": ppo}))
        for number in (1, 2):
            tables: dict[str, list[dict[str, object]]] = {"rollouts": [], "advantages": []}
            for place, (prompt, reward, in_loss, reason) in enumerate(ROWS):
                key = {"rollout_id": f"{number}/{place}", "prompt_id": prompt, "reward": reward, "in_loss": in_loss}
                ids = {"prompt_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-1.0, -2.0]}
                told = key | ids | {"finish_reason": reason, "advantage": 1.5 if in_loss else 0.0}
                tables["rollouts"].append(filled(ROLLOUTS, told))
                tables["advantages"].append(filled(ADVANTAGES, told))
            for (name, rows), schema in zip(tables.items(), (ROLLOUTS, ADVANTAGES), strict=True):
                fingerprint = Fingerprint(stage=name, round=number, version=1, config={}, inputs={})
                writer = ArtifactWriter(run.artifact(round_folder(number, name)), fingerprint)
                writer.write_table("shard-00000.parquet", pa.Table.from_pylist(rows, schema=schema))
                writer.finish()
        return run

    return make


def told(run: Run, number: int) -> list[tuple[object, ...]]:
    found = training_rollouts(run, number)
    return [(one.prompt_id, one.reward, one.in_loss, one.advantage, one.truncated) for one in found]


def test_a_round_with_a_ppo_part_takes_dead_groups_but_nothing_without_a_reward(run_of):
    run = run_of(MIXED)
    live = [("live", 1.0, True, 1.5, False), ("live", 0.0, True, 1.5, True)]
    assert told(run, 1) == [*live, ("dead", 0.25, False, 0.0, False), ("dead", 0.25, False, 0.0, True)]
    assert told(run, 2) == live


def test_grpo_alone_takes_the_live_groups(run_of):
    assert [row[0] for row in told(run_of({}), 1)] == ["live", "live"]


def test_settings_of_a_ppo_part_that_is_off_change_no_fingerprint():
    def config(**ppo: object) -> dict[str, object]:
        return dict(STAGE.config(Run("unused", RunConfig(update={"ppo": ppo}))))

    assert config(gamma=0.5, alpha_rounds=7) == config()
    assert config(alpha_end=0.5) != config()
    assert config(alpha_end=0.5, gamma=0.5) != config(alpha_end=0.5)


def test_how_many_ranks_and_what_they_hold_change_no_fingerprint_but_adapters_do():
    def config(**update: object) -> dict[str, object]:
        return dict(STAGE.config(Run("unused", RunConfig(update=update))))

    assert not {"ranks", "gradient_checkpointing", "lora"} & config()["update"].keys()
    assert config(ranks=8, gradient_checkpointing=True) == config()
    assert config(lora={"rank": 8}) != config()
    assert config(lora={"rank": 8}) != config(lora={"rank": 16})


def test_an_adapter_needs_the_files_of_the_first_policy_alone(tmp_path):
    def models(**update: object) -> list[str]:
        run, _ = create_or_open(str(tmp_path / "run"), RunConfig(update=update))
        return STAGE.models(run, 3)

    assert models() == ["rounds/0002/policy", "rounds/0002/trainer_state"]
    assert models(lora={}) == ["rounds/0000/policy", "rounds/0002/trainer_state"]
