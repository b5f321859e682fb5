"""The stage over real artifacts: what it reads for each estimator, what it leaves, and that both are exact."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo_core.advantages.prior import Prior
from grpo_core.artifacts import ArtifactWriter
from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import ADVANTAGES, REWARDS, ROLLOUTS, rollout_id
from tasks.compute_advantages import PRIOR, STAGE
from tasks.run import Run, round_folder
from tasks.stage import execute, input_digest

# Two shards of whole groups. Totals: p1 1.1 0.1 0, p0 (unchecked) 0 1, p2 0.1 0.1.
ROWS = [
    [("p1", 0, 1.1), ("p1", 1, 0.1), ("p1", 2, 0.0)],
    [("p0", 0, None), ("p0", 1, 0.0), ("p0", 2, 1.0), ("p2", 0, 0.1), ("p2", 1, 0.1)],
]
Shards = list[list[tuple[str, int, float | None]]]


def empty(schema: pa.Schema) -> dict[str, Any]:
    """A row of nothings, for columns that don't matter here."""
    return {
        field.name: "" if pa.types.is_string(field.type) else [] if field.type.num_fields else 0 for field in schema
    }


def write(run: Run, folder: str, schema: pa.Schema, shards: list[list[dict[str, Any]]]) -> None:
    fingerprint = Fingerprint(stage="test", round=1, version=1, config={}, inputs={})
    writer = ArtifactWriter(run.artifact(folder), fingerprint)
    for number, rows in enumerate(shards):
        table = pa.Table.from_pylist([empty(schema) | row for row in rows], schema=schema)
        writer.write_table(f"shard-{number:05d}.parquet", table)
    writer.finish()


def run_with(
    folder: Path, advantage: dict[str, Any], rounds: int = 1, shards: Shards = ROWS, shift: float = 0.0
) -> Run:
    """A run whose rollouts and rewards lie there; each round's rewards are higher by ``shift`` than the last's."""
    run = Run(str(folder), RunConfig.model_validate({"advantage": advantage}))
    for number in range(1, rounds + 1):
        keys = [
            [
                (rollout_id(number, prompt, sample), number, prompt, sample, reward and reward + shift * (number - 1))
                for prompt, sample, reward in rows
            ]
            for rows in shards
        ]
        names = ("rollout_id", "round", "prompt_id", "sample_index", "reward")
        rewards = [
            [
                dict(zip(names, key, strict=True))
                | {"components": [] if key[4] is None else [("box", 0.1 * (key[4] > 0)), ("correct", key[4] // 1)]}
                for key in rows
            ]
            for rows in keys
        ]
        rollouts = [
            [dict(zip(names[:4], key[:4], strict=True)) | {"completion_ids": [5] * (key[3] + 1)} for key in rows]
            for rows in keys
        ]
        write(run, round_folder(number, "rewards"), REWARDS, rewards)
        write(run, round_folder(number, "rollouts"), ROLLOUTS, rollouts)
    return run


def done(run: Run, number: int = 1) -> dict[str, dict[str, Any]]:
    execute(STAGE, run, number)
    table = run.artifact(round_folder(number, "advantages")).read_table(ADVANTAGES)
    return {row["rollout_id"]: row for row in table.to_pylist()}


def files(run: Run, number: int = 1) -> dict[str, bytes]:
    folder = Path(run.uri, round_folder(number, "advantages"))
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in ("timings.json",)}


def test_the_default_depends_on_what_it_always_did_and_its_files_have_the_same_columns(tmp_path: Path) -> None:
    run = run_with(tmp_path, {})
    fingerprint = STAGE.fingerprint(run, 1)
    assert fingerprint.config == {"advantage": {"estimator": "group", "epsilon": 0.0001, "ddof": 1}}
    assert fingerprint.inputs == {"rewards": input_digest(run, "rounds/0001/rewards")}
    assert fingerprint.version == 1
    rows = done(run)
    std = np.std([1.1, 0.1, 0.0], ddof=1)
    assert rows["0001/p1/0"]["advantage"] == pytest.approx((1.1 - 0.4) / (std + 1e-4), rel=1e-14)
    assert rows["0001/p0/0"]["reward"] is None
    assert [name for name, row in rows.items() if not row["in_loss"]] == ["0001/p0/0", "0001/p2/0", "0001/p2/1"]
    assert {row["tier"] for row in rows.values()} == {row["rank"] for row in rows.values()} == {None}
    shard = pq.read_schema(tmp_path / "rounds/0001/advantages/shard-00000.parquet")
    assert shard.names == [name for name in ADVANTAGES.names if name not in ("rank", "tier")]


def test_opo_joins_the_lengths_of_the_completions(tmp_path: Path) -> None:
    run = run_with(tmp_path, {"estimator": "opo"})
    rows = done(run)
    assert rows["0001/p1/0"]["advantage"] == pytest.approx(1.1 - (1.1 + 2 * 0.1) / 6, rel=1e-14)
    assert rows["0001/p0/2"]["advantage"] == pytest.approx(1 - 3 / 5, rel=1e-14)  # the unchecked one has no weight
    assert STAGE.fingerprint(run, 1).inputs["rollouts"] == input_digest(run, "rounds/0001/rollouts")


def test_gdpo_reads_the_components(tmp_path: Path) -> None:
    run = run_with(tmp_path, {"estimator": "gdpo", "component_weights": {"correct": 1.0}, "ddof": 0, "epsilon": 1e-12})
    rows = done(run)
    # Only "correct" counts: p1 1 0 0, p0 0 1, p2 0 0. S: sqrt 2, -1/sqrt 2 twice; -1, 1; 0 0: variance 5 / 7.
    assert rows["0001/p1/0"]["advantage"] == pytest.approx(2**0.5 / (5 / 7) ** 0.5, rel=1e-9)
    assert rows["0001/p0/1"]["advantage"] == pytest.approx(-1 / (5 / 7) ** 0.5, rel=1e-9)
    assert not rows["0001/p2/0"]["in_loss"]
    with pytest.raises(UserError, match="names 'style', and the reward's components are box, correct"):
        done(run_with(tmp_path, {"estimator": "gdpo", "component_weights": {"style": 1.0}}))


def test_tiers_fill_their_columns(tmp_path: Path) -> None:
    run = run_with(tmp_path, {"estimator": "tiers", "rank_form": "unit"})
    rows = done(run)
    # Valid rewards in order: 0 0 | 0.1 0.1 0.1 | 1 1.1, the middles of the blocks at 2/14, 7/14, 11/14 and 13/14.
    assert [rows[f"0001/{name}"]["tier"] for name in ("p1/2", "p0/1", "p1/1", "p2/0", "p0/2", "p1/0")] == [
        0, 0, 1, 1, 2, 2,
    ]  # fmt: skip
    assert rows["0001/p0/0"]["tier"] is None
    assert rows["0001/p0/0"]["rank"] is None
    assert rows["0001/p2/0"]["zero_variance"]
    assert rows["0001/p2/0"]["in_loss"]
    assert rows["0001/p1/0"]["rank"] == rows["0001/p1/0"]["advantage"] == 1.0
    metrics = execute(STAGE, run, 1)["metrics"]
    assert (metrics["tiers"], metrics["tier_1_from"], metrics["tier_2_from"]) == (3, 0.1, 1.0)


def test_adaptive_tiers_go_on_from_the_round_before_to_the_bit(tmp_path: Path) -> None:
    advantage = {"estimator": "adaptive_tiers", "tier_schedule": [[1, 3], [3, 4]], "prior_decay": 0.7}
    run = run_with(tmp_path / "one", advantage, rounds=3, shift=0.2)
    for number in (1, 2, 3):
        done(run, number)
    first, third = (Prior.from_bytes(files(run, n)[PRIOR]) for n in (1, 3))
    assert first.weight.sum() == pytest.approx(1)
    assert third.weight.sum() == pytest.approx(1)
    assert "prior" not in STAGE.fingerprint(run, 1).inputs
    expected = [files(run, n) for n in (1, 2, 3)]
    for name in ("shard-00001.parquet", PRIOR):  # harmed: made again with the same bytes
        Path(run.uri, "rounds/0002/advantages", name).write_bytes(b"harmed")
        assert not STAGE.condition(run, 2, STAGE.fingerprint(run, 2)).done
        done(run, 2)
        again = files(run, 2)
        assert {n: again[n] for n in again if n != "manifest.json"} == {
            n: data for n, data in expected[1].items() if n != "manifest.json"
        }
    # Another past makes another round: its fingerprint names the prior.
    other = run_with(tmp_path / "two", advantage, rounds=2, shift=0.3)
    done(other, 1)
    assert STAGE.fingerprint(other, 2).inputs["prior"] == STAGE.fingerprint(run, 2).inputs["prior"]
    done(other, 2)
    write(run, round_folder(1, "rewards"), REWARDS, [[{"rollout_id": "0001/p/0", "prompt_id": "p", "reward": 0.5}]])
    done(run, 1)
    assert not STAGE.condition(run, 2, STAGE.fingerprint(run, 2)).done
    assert "input prior" in STAGE.condition(run, 2, STAGE.fingerprint(run, 2)).why


@pytest.mark.parametrize("estimator", ["group", "reinforce_pp_baseline", "opo", "gdpo", "adaptive_tiers"])
def test_advantages_do_not_depend_on_shards_or_order(tmp_path: Path, estimator: str) -> None:
    straight = done(run_with(tmp_path / "a", {"estimator": estimator}))
    turned = [list(reversed(rows)) for rows in reversed(ROWS)]
    assert done(run_with(tmp_path / "b", {"estimator": estimator}, shards=turned)) == straight
    one = [[row for rows in ROWS for row in rows]]
    assert done(run_with(tmp_path / "c", {"estimator": estimator}, shards=one)) == straight
