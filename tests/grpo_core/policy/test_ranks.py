import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_jobs import JOBS, by_ranks, do, make_models, rollouts
from safetensors.torch import load_file

from grpo_core.policy.batching import Microbatch, PackedGroup, TrainingRollout, microbatches
from grpo_core.policy.ranks import ALONE, Ranks
from grpo_core.policy.shards import own_rows

BY_FOUR = ("one-step", "plain", "one-microbatch", "lora", "resumed", "resumed-lora")
EXACT = [name for name in JOBS if "bfloat16" not in name and not name.startswith("stopped")]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every job by two real processes, some by four, all by one; what resumes goes on from what two have saved."""
    folder = tmp_path_factory.mktemp("ranks")
    make_models(folder)
    by_ranks(folder, 2, list(JOBS))
    by_ranks(folder, 4, BY_FOUR)
    do(folder, list(JOBS))
    return folder


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor under a folder by file and name."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        found |= {f"{path.relative_to(folder)}: {name}": tensor for name, tensor in load_file(path).items()}
    return found


def distance(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert one.keys() == two.keys()
    assert all(one[name].dtype == two[name].dtype for name in one)
    return max(float((one[name].double() - two[name].double()).abs().max()) for name in one)


def metrics(folder: Path) -> dict[str, Any]:
    """Those that were measured."""
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize(("size", "name"), [(2, name) for name in EXACT] + [(4, name) for name in BY_FOUR])
@pytest.mark.slow
@pytest.mark.distributed
def test_ranks_leave_what_one_process_leaves(done: Path, size: int, name: str) -> None:
    one, many = done / "by-1" / name, done / f"by-{size}" / name
    assert distance(tensors(one), tensors(many)) < TOLERANCE
    expected, found = metrics(one), metrics(many)
    assert found["steps"] == expected["steps"]
    assert (found["steps"] > 0) == (name != "nothing-to-learn")
    assert found == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
    rows = zip(*(pq.read_table(folder / "steps.parquet").to_pylist() for folder in (one, many)), strict=True)
    for row, other in rows:
        assert other == row | {"gradient_share": pytest.approx(row["gradient_share"], abs=TOLERANCE)}


@pytest.mark.slow
@pytest.mark.distributed
def test_gradients_of_ranks_are_those_of_one_process(done: Path) -> None:
    # After one step the first moment is a tenth of the clipped gradient.
    first = [tensors(done / f"by-{size}" / "one-step" / "trainer_state") for size in (1, 2, 4)]
    gradients = [{name: 10 * t for name, t in found.items() if "exp_avg." in name} for found in first]
    norm = sum(float(gradient.square().sum()) for gradient in gradients[0].values()) ** 0.5
    assert norm == pytest.approx(1.0, rel=1e-5)  # clipped from about 4
    assert distance(gradients[0], gradients[1]) < TOLERANCE
    assert distance(gradients[0], gradients[2]) < TOLERANCE


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kind", ["", "-lora"])
@pytest.mark.slow
@pytest.mark.distributed
def test_a_checkpoint_of_two_ranks_goes_on_with_any_number(done: Path, size: int, kind: str) -> None:
    undisturbed = tensors(done / "by-1" / f"long{kind}")
    assert distance(undisturbed, tensors(done / f"by-{size}" / f"resumed{kind}")) < TOLERANCE
    assert not (done / "by-2" / f"stopped{kind}" / "policy").exists()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.distributed
def test_the_same_ranks_leave_the_same_bytes(done: Path) -> None:
    assert files(done / "by-2" / "plain") == files(done / "by-2" / "plain-again")
    assert files(done / "by-2" / "long") == files(done / "by-2" / "resumed")
    assert files(done / "by-2" / "plain") == files(done / "by-2" / "recomputed")


@pytest.mark.slow
@pytest.mark.distributed
def test_the_files_are_those_of_one_process(done: Path) -> None:
    for name in ("plain", "lora"):
        one, two = files(done / "by-1" / name), files(done / "by-2" / name)
        assert one.keys() == two.keys()
        for file in one:
            if not file.endswith((".safetensors", ".parquet", "metrics.json", "canary.json")):
                assert one[file] == two[file], file


@pytest.mark.parametrize("name", ["bfloat16", "lora-bfloat16"])
@pytest.mark.slow
@pytest.mark.distributed
def test_computing_in_bfloat16_keeps_float32_beside_it(done: Path, name: str) -> None:
    one, two = (tensors(done / f"by-{size}" / name) for size in (1, 2))
    assert distance(one, two) < 0.01
    weights = [tensor for key, tensor in two.items() if key.startswith("policy/model.")]
    assert {tensor.dtype for tensor in weights} == {torch.bfloat16}
    masters = {key: tensor for key, tensor in two.items() if ": weight." in key}
    assert {tensor.dtype for tensor in masters.values()} == {torch.float32}
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in masters.values())


@settings(deadline=None)
@given(count=st.integers(0, 40), size=st.integers(1, 9))
def test_every_micro_batch_has_one_rank_and_all_ranks_have_as_many_turns(count: int, size: int) -> None:
    rollout = TrainingRollout("p", [1], [2], [-1.0], 0.5)
    batches = [Microbatch([PackedGroup([1], [[2]])], [rollout]) for _ in range(count)]
    by_rank = [list(Ranks(rank, size).turns(batches)) for rank in range(size)]
    assert len({len(turns) for turns in by_rank}) == 1
    for together in zip(*by_rank, strict=True):
        mine = [turn.mine for turn in together if turn.is_mine]
        assert [id(batch) for batch in mine] == [id(batch) for batch in together[0].batches]
        assert all(batch.tokens == 0 for batch in (turn.mine for turn in together if not turn.is_mine))
    assert sum(len(turn.batches) for turn in by_rank[0]) == count


def test_one_process_alone_takes_every_micro_batch() -> None:
    batches = microbatches(rollouts(), 60, None)
    assert [turn.mine for turn in ALONE.turns(batches)] == batches
    assert ALONE.in_order(iter([3, 1, 2])) == [3, 1, 2]


@settings(deadline=None)
@given(count=st.integers(1, 60), size=st.integers(1, 9))
def test_rows_are_cut_as_fsdp_cuts_them(count: int, size: int) -> None:
    pieces = [piece.tolist() for piece in torch.arange(count).chunk(size)]
    pieces += [[]] * (size - len(pieces))
    assert [list(range(count))[own_rows(count, rank, size)] for rank in range(size)] == pieces
