"""A run that trains adapters: what it leaves is policies as any other's."""

import json

import pytest
from safetensors.torch import load_file
from support import ROOT, TINY

ADAPTER = {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"}


@pytest.mark.slow
def test_a_run_with_adapters_is_retained_and_audited_as_any(command, finished_run, tmp_path):
    run = tmp_path / "run"
    sets = ["update.lora.rank=2", "update.learning_rate=0.02", "update.epochs=1", "reward.name=support:odd_bytes"]
    sets += ["retention.policies=1", "evaluation.every=9"]
    options = [part for one in sets for part in ("--set", one)]
    done = command("train", TINY, "--run-dir", run, *options, PYTHONPATH=str(ROOT / "tests"))
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = ("0000", "0001", "0002")
    manifests = {n: json.loads((run / f"rounds/{n}/policy/manifest.json").read_text()) for n in numbers}
    assert manifests["0002"]["metrics"]["steps"] == 2
    assert manifests["0002"]["files"].keys() - manifests["0000"]["files"].keys() == ADAPTER
    assert manifests["0001"]["files"].keys() >= ADAPTER
    assert (run / "rounds/0001/policy/retired.json").exists()
    assert not list((run / "rounds/0001/policy").rglob("*.safetensors"))

    first, last = (load_file(run / f"rounds/{n}/policy/model.safetensors") for n in ("0000", "0002"))
    assert first.keys() == last.keys()
    moved = [name for name in first if not (first[name] == last[name]).all()]
    assert moved
    assert all("_proj" in name for name in moved)

    proven = command("audit", "verify", run, PYTHONPATH=str(ROOT / "tests"))
    assert proven.returncode == 0, proven.stdout + proven.stderr
    assert "Nothing differs" in proven.stdout

    full = json.loads((finished_run / "rounds/0001/policy/manifest.json").read_text())
    assert "lora" not in full["parts"]["config"]["update"]
    assert manifests["0001"]["parts"]["config"]["update"]["lora"] == {"rank": 2, "alpha": 32.0, "targets": None}
