"""The reference's weights lie in the heap, not in pages of its file."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.errors import UserError
from grpo_core.models import load_policy
from grpo_core.policy import reference as module
from grpo_core.policy.reference import load_reference

CPU = torch.device("cpu")


@pytest.fixture
def saved(build: Callable[..., Any], tmp_path: Path) -> Path:
    build(tie_word_embeddings=True).save_pretrained(tmp_path)
    return tmp_path


def mapped(folder: Path) -> bool:
    return sys.platform == "linux" and str(folder) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("piece_bytes", [64, 2**22])
def test_same_weights_and_no_page_of_the_file(saved: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE_BYTES", piece_bytes)
    file = saved / "model.safetensors"
    before = file.read_bytes()
    plain = load_policy(saved, CPU, torch.float32)
    assert mapped(saved) == (sys.platform == "linux")  # else there is nothing to do
    expected = {name: weight.clone() for name, weight in plain.state_dict().items()}
    del plain
    model = load_reference(saved, CPU, torch.float32)
    assert not mapped(saved)
    assert {name: weight.tolist() for name, weight in model.state_dict().items()} == {
        name: weight.tolist() for name, weight in expected.items()
    }
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert file.read_bytes() == before


def test_where_the_system_tells_no_mappings_nothing_is_copied(
    saved: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_MAPS", tmp_path / "none")
    ids = torch.tensor([[3, 4, 5]])
    plain, model = load_policy(saved, CPU, torch.float32), load_reference(saved, CPU, torch.float32)
    assert torch.equal(model(input_ids=ids).logits, plain(input_ids=ids).logits)


def test_weights_in_another_precision_are_not_of_the_file(saved: Path) -> None:
    model = load_reference(saved, CPU, torch.bfloat16)
    assert not mapped(saved)
    assert next(model.parameters()).dtype is torch.bfloat16


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no model"):
        load_reference(tmp_path, CPU, torch.float32)
