"""What a run will take, as a user asks for it; and what can't fit, refused before it starts."""

import json
from functools import cache
from pathlib import Path

import pytest
from support import ROOT, TINY
from transformers import LlamaConfig, MistralConfig

from flows.plan import lengths_of, make_plan, refuse_what_cannot_fit
from grpo_core.config import RunConfig, load_config
from grpo_core.errors import NotHere
from grpo_core.estimate.machine import GIB, Machine, gpus
from grpo_core.estimate.run import Estimate, over

SHAPES = (ROOT / "configs/shapes",)
RECIPES = {
    "gsm8k-qwen2.5-math-7b.yaml": (gpus(8, 80 * GIB), 7_615_616_512),  # parameters as in the published files
    "gsm8k-qwen2.5-1.5b.yaml": (gpus(1, 80 * GIB), 1_543_714_304),
    "quickstart.yaml": (None, 134_515_008),
}


@cache  # several tests ask for the same
def plan(name: str, *overrides: str, machine: Machine | None = None) -> tuple[RunConfig, Estimate]:
    config = load_config(ROOT / "configs" / name, list(overrides))
    return config, make_plan(config, machine=machine, folders=SHAPES)


def bytes_of(estimate: Estimate, stage: str) -> dict[str, int]:
    return next(found.components for found in estimate.memory if found.stage == stage)


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_fits_the_machine_that_it_is_for(name: str) -> None:
    machine, parameters = RECIPES[name]
    config, estimate = plan(name, machine=machine)
    assert estimate.shape.parameters == parameters
    assert over(estimate, config, lambda _: estimate.machine.bytes_each) is None
    assert not estimate.notes
    update = bytes_of(estimate, "update_policy")
    assert update["moments"] == -(-8 * parameters // config.update.ranks)
    assert update["activations"] > 0
    assert estimate.rollouts == config.data.prompts_per_round * 8
    assert estimate.seconds > 0


def test_seven_billion_do_not_fit_one_gpu_and_each_mend_named_helps() -> None:
    machine = gpus(8, 80 * GIB)
    recipe = "gsm8k-qwen2.5-math-7b.yaml"

    def problem(*overrides: str) -> str | None:
        config, estimate = plan(recipe, *overrides, machine=machine)
        return over(estimate, config, lambda _: machine.bytes_each)

    alone = problem("update.ranks=1")
    assert alone is not None
    assert "update.ranks to 8" in alone
    assert "update.lora" in alone
    assert problem("update.ranks=1", "update.lora={}") is None
    wide = problem("update.gradient_checkpointing=false")
    assert wide is not None
    assert "update.gradient_checkpointing" in wide
    assert "update.tokens_per_microbatch" in wide


def test_a_batch_of_rollouts_that_is_too_large_is_named() -> None:
    config, estimate = plan("gsm8k-qwen2.5-1.5b.yaml", "generation.engine=transformers", machine=gpus(1, 80 * GIB))
    found = bytes_of(estimate, "generate_rollouts")
    assert found["KV cache"] >= 256 * (512 + 1024 - 1) * 2 * 28 * 256 * 2
    told = over(estimate, config, lambda stage: 15 * GIB if stage.stage == "generate_rollouts" else 80 * GIB)
    assert told is not None
    assert "generation.shard_groups" in told


def test_a_kept_engine_stays_beside_the_update() -> None:
    _, apart = plan("gsm8k-qwen2.5-1.5b.yaml", machine=gpus(1, 80 * GIB))
    _, kept = plan("gsm8k-qwen2.5-1.5b.yaml", "generation.vllm.keep_alive=true", machine=gpus(1, 80 * GIB))
    more = bytes_of(kept, "update_policy")["kept engine"]
    assert more == pytest.approx(0.9 * 80 * GIB, rel=1e-6)
    assert "kept engine" not in bytes_of(apart, "update_policy")


def test_prompts_are_measured_where_they_lie_here(tmp_path: Path) -> None:
    rows = [{"question": "x" * length, "answer": "1"} for length in (10, 20, 600)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = {"source": str(tmp_path / "rows.jsonl"), "max_prompt_tokens": 100, "eval_size": 1}
    around = len("<|bos|>user: \nassistant: ") - len("<|bos|>") + 1  # a token a byte, but for the special one
    config = RunConfig.model_validate({"model": {"name": "tiny"}, "data": data, "generation": {"max_new_tokens": 30}})
    found = lengths_of(config)
    assert (found.prompt_mean, found.prompt_most) == (15 + around, 20 + around)  # the long one is rejected by the run
    assert (found.completion_mean, found.completion_most) == (15, 30)
    assert lengths_of(config, mean_completion=7).completion_mean == 7
    elsewhere = config.model_copy(update={"data": config.data.model_copy(update={"source": "openai/gsm8k"})})
    assert (lengths_of(elsewhere).prompt_mean, lengths_of(elsewhere).prompt_most) == (50, 100)


def test_a_model_with_a_sliding_window_is_planned_with_padded_rows(tmp_path: Path) -> None:
    MistralConfig(
        vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=16,
    ).save_pretrained(tmp_path)  # fmt: skip
    config = load_config(TINY, [f"model.name={tmp_path}"])
    estimate = make_plan(config)
    assert not estimate.notes
    assert bytes_of(estimate, "update_policy")["activations"] > 0


def giant(folder: Path) -> Path:
    """A folder as transformers saves one, but without the 500 billion weights that its config asks for."""
    LlamaConfig(
        vocab_size=100_000, hidden_size=16384, intermediate_size=53248, num_hidden_layers=150, num_attention_heads=128,
        num_key_value_heads=8,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def test_what_surely_does_not_fit_is_refused_and_an_unknown_model_is_not(tmp_path: Path) -> None:
    config = load_config(TINY, [f"model.name={giant(tmp_path)}"])
    with pytest.raises(NotHere, match=r"update_policy needs .* update\.lora"):
        refuse_what_cannot_fit(config)
    refuse_what_cannot_fit(load_config(TINY))
    refuse_what_cannot_fit(load_config(TINY, ["model.name=nobody/nothing"]))
    (tmp_path / "config.json").write_text("{}")
    refuse_what_cannot_fit(config)


def test_the_commands(command, tmp_path: Path) -> None:
    done = command("plan", TINY, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["fits"] is True
    assert set(told["bytes"]) == {"generate_rollouts", "score_rewards", "update_policy", "evaluate_policy"}

    assert "update_policy), about" in command("train", TINY, "--run-dir", tmp_path / "dry", "--dry-run").stdout

    recipe = ROOT / "configs/gsm8k-qwen2.5-1.5b.yaml"
    small = command("plan", recipe, "--gpus", "1", "--gpu-memory", "12", "--set", "generation.vllm.memory_share=0.5")
    assert small.returncode == 2
    assert "1,544 M parameters" in small.stdout
    assert small.stderr.startswith("error: update_policy needs")
    assert "update.lora" in small.stderr
    many = command("plan", recipe, "--gpus", "1", "--gpu-memory", "80", "--set", "update.ranks=4")
    assert many.returncode == 2
    assert "update.ranks is 4" in many.stderr

    unknown = ["plan", TINY, "--set", "model.name=nobody/nothing"]
    assert "--model-config" in command(*unknown).stderr
    file = ROOT / "configs/shapes/Qwen2.5-1.5B-Instruct.json"
    assert "1,544 M parameters" in command(*unknown, "--model-config", file).stdout

    folder = giant(tmp_path / "giant")
    for more in ([], ["--dry-run"]):
        refused = command("train", TINY, "--run-dir", tmp_path / "run", "--set", f"model.name={folder}", *more)
        assert "update_policy needs" in refused.stdout + refused.stderr
        assert refused.returncode == (0 if more else 2)
    assert not (tmp_path / "run").exists()
