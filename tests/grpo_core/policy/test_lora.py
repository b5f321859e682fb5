import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from pydantic import ValidationError
from rank_jobs import CPU, job_of, make_models, rollouts
from safetensors.torch import load_file

from grpo_core.canary import check_canary, probe_ids, probe_logprobs
from grpo_core.errors import UserError
from grpo_core.generation.transformers_engine import TransformersEngine
from grpo_core.models import load_policy, load_tokenizer
from grpo_core.policy.batching import microbatches
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.form import inspect_model
from grpo_core.policy.job import UpdateJob, run_job
from grpo_core.policy.logprobs import completion_logprobs
from grpo_core.policy.lora import base_alone, first_adapter_weight, load_base_with_adapter, merge, require_mergeable
from grpo_core.policy.lora_config import LoraConfig
from grpo_core.schemas import no_progress


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    make_models(folder)
    return folder


def train(job: UpdateJob, out: Path) -> Path:
    done = run_job(job, rollouts(), CPU, None, no_progress)
    done.save_trainer_state(out / "trainer_state")
    done.save_policy(out / "policy")
    return out


def changed(job: UpdateJob, trainer_state: Path | None = None, dtype: str = "float32", **update: Any) -> UpdateJob:
    return job.model_copy(
        update={
            "trainer_state": trainer_state,
            "model": job.model.model_copy(update={"dtype": dtype}),
            "update": job.update.model_copy(update=update),
        }
    )


@pytest.fixture(scope="module")
def trained(models: Path) -> Path:
    """What one round of LoRA leaves."""
    return train(changed(job_of(models, "lora"), learning_rate=2e-2), models / "trained")


def engine(folder: Path) -> TransformersEngine:
    return TransformersEngine(load_policy(folder, CPU, torch.float32), load_tokenizer(folder))


def probed(folder: Path) -> list[float]:
    return engine(folder).probe(probe_ids(259))


def test_an_engine_generates_with_the_adapter(models: Path, trained: Path) -> None:
    assert check_canary(engine(trained / "policy"), trained / "policy") < 1e-4
    assert np.abs(np.subtract(probed(trained / "policy"), probed(models / "untied"))).mean() > 0.05
    with pytest.raises(UserError, match="does not generate with the weights"):
        check_canary(engine(models / "untied"), trained / "policy")


def test_peft_reads_the_adapter_that_lies_beside_it(models: Path, trained: Path) -> None:
    base = load_policy(models / "untied", CPU, torch.float32)
    loaded = PeftModel.from_pretrained(base, str(trained / "policy/adapter"))
    assert probe_logprobs(loaded.model, probe_ids(259)) == pytest.approx(probed(trained / "policy"), abs=1e-4)
    told = json.loads((trained / "policy/adapter/adapter_config.json").read_text())
    assert (told["r"], told["lora_alpha"], told["base_model_name_or_path"]) == (4, 8, None)


def test_adapters_alone_are_trained(models: Path, trained: Path) -> None:
    base, merged = (load_file(folder / "model.safetensors") for folder in (models / "untied", trained / "policy"))
    assert base.keys() == merged.keys()
    moved = {name for name in base if not torch.equal(base[name], merged[name])}
    assert moved == {
        f"model.layers.{n}.{end}.weight" for n in range(3) for end in ("self_attn.q_proj", "mlp.down_proj")
    }
    index = json.loads((trained / "trainer_state/trainer_state.json").read_text())
    assert index["master_weights"] is True
    assert len(index["parameters"]) == 12
    assert all("lora_" in name for name in index["parameters"])


def test_the_next_round_goes_on_from_the_adapter_in_float32(models: Path, trained: Path, tmp_path: Path) -> None:
    job = changed(job_of(models, "lora"), trained / "trainer_state", "bfloat16", learning_rate=1e-12)
    after = train(job, tmp_path)
    one, two = (load_file(out / "trainer_state/optimizer-00000.safetensors") for out in (trained, after))
    weights = [name for name in one if name.startswith("weight.")]
    assert len(weights) == 12
    assert max(float((one[name] - two[name]).abs().max()) for name in weights) < 1e-9
    merged = load_file(after / "policy/model.safetensors")
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}
    full = load_file(trained / "policy/model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(merged[name], full[name].bfloat16())  # rounded once, and never added to
    assert json.loads((after / "trainer_state/trainer_state.json").read_text())["step"] == 8


def test_the_state_of_another_adapter_is_refused(models: Path, trained: Path, tmp_path: Path) -> None:
    wider = changed(job_of(models, "lora"), trained / "trainer_state", lora=LoraConfig(rank=8, targets=("q_proj",)))
    with pytest.raises(UserError, match="trainer state of another model"):
        train(wider, tmp_path)


def test_without_its_adapter_the_model_is_the_reference(models: Path) -> None:
    lora = LoraConfig(rank=4)
    model = load_base_with_adapter(models / "untied", CPU, torch.float32, lora, 0)
    plain = load_policy(models / "untied", CPU, torch.float32)
    groups = microbatches(rollouts(), 4096, None)[0].groups
    form, draw = inspect_model(plain, 40), torch.Generator().manual_seed(0)

    def logprobs(of: Any) -> torch.Tensor:
        with torch.no_grad():
            return completion_logprobs(of, groups, 1.0, False, form=form).logprobs

    assert torch.equal(logprobs(model), logprobs(plain))  # B starts at 0
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=draw)
    adapted = logprobs(model)
    assert float((adapted - logprobs(plain)).abs().max()) > 0.1
    with base_alone(model):
        assert torch.equal(logprobs(model), logprobs(plain))
    assert torch.equal(logprobs(model), adapted)


def test_merged_by_hand() -> None:
    base = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    adapter = {
        "h.0.q.lora_A.default.weight": torch.tensor([[1.0, -1.0]]),
        "h.0.q.lora_B.default.weight": torch.tensor([[2.0], [0.5]]),
    }
    found = merge("h.0.q.weight", base, adapter, LoraConfig(rank=1, alpha=0.5))
    assert found.tolist() == [[2.0, 1.0], [3.25, 3.75]]
    assert merge("h.0.k.weight", base, adapter, LoraConfig()) is base


def test_first_weights_depend_on_seed_and_name_alone() -> None:
    shape = torch.Size([3, 16])
    one = first_adapter_weight("h.0.q.lora_A.default.weight", shape, 1)
    torch.rand(3)
    assert torch.equal(one, first_adapter_weight("h.0.q.lora_A.default.weight", shape, 1))
    assert not torch.equal(one, first_adapter_weight("h.1.q.lora_A.default.weight", shape, 1))
    assert 0.15 < float(one.abs().max()) <= 0.25  # uniform between -1/4 and 1/4
    assert first_adapter_weight("h.0.q.lora_B.default.weight", torch.Size([16, 3]), 1).count_nonzero() == 0


@pytest.mark.parametrize("targets", [("no_such",), ("lm_head",), ("embed_tokens",)])
def test_layers_that_can_not_be_merged_are_refused(models: Path, targets: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"update\.lora\.targets"):
        load_base_with_adapter(models / "tied", CPU, torch.float32, LoraConfig(targets=targets), 0)


def test_an_adapter_that_no_file_could_take_up_is_refused(models: Path) -> None:
    model = load_base_with_adapter(models / "tied", CPU, torch.float32, LoraConfig(targets=("q_proj",)), 0)
    names = [f"model.layers.{number}.self_attn.q_proj.weight" for number in range(3)]
    require_mergeable(model, names)
    with pytest.raises(UserError, match=r"'model\.layers\.2\.self_attn\.q_proj'"):
        require_mergeable(model, names[:2])


@pytest.mark.parametrize("lora", [{"rank": 0}, {"alpha": 0.0}, {"targets": []}, {"dropout": 0.1}])
def test_what_is_no_adapter_is_refused(lora: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        UpdateConfig.model_validate({"lora": lora})
