"""vLLM's engines in processes of their own: what they give, and what happens when one dies, hangs or is refused."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm_policy import SECOND_END, VLLM, needs_vllm, save_small_policy, small_policy

from grpo_core.artifacts import Artifact, ArtifactWriter
from grpo_core.canary import CANARY_FILE, check_canary
from grpo_core.config import RunConfig
from grpo_core.errors import NotHere, UserError
from grpo_core.fingerprint import Fingerprint
from grpo_core.generation.check import check_engine
from grpo_core.generation.engine import Completion, GenerationConfig, Request, SamplingParams, generate_batches
from grpo_core.generation.fleet import EngineFleet, share_out
from grpo_core.generation.open import open_engine
from grpo_core.generation.shards import RolloutJob, make_shards
from grpo_core.generation.vllm_config import vllm_seed
from grpo_core.models import ModelConfig
from grpo_core.schemas import ROLLOUTS
from grpo_core.seeding import hash64
from grpo_core.storage import FileRecord, Store

CPU = ModelConfig(device="cpu", threads=1)
FINGERPRINT = Fingerprint("test", 1, 1, {}, {})
NAMES = [f"shard-{number:05d}.parquet" for number in range(4)]


def config(**vllm: object) -> GenerationConfig:
    return GenerationConfig.model_validate({"engine": "vllm", "group_size": 4, "vllm": VLLM | vllm})


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_policy(tmp_path_factory.mktemp("policies") / "first")


@pytest.fixture(scope="module")
def fleet(policy: Path) -> Iterator[EngineFleet]:
    with open_engine(policy, CPU, config(engines=2, silence_seconds=12)) as engine:
        assert isinstance(engine, EngineFleet)
        yield engine


def requests_of(shard: int, groups: int = 3, size: int = 4) -> list[Request]:
    return [
        Request(f"{shard}-{group}", [1, 70 + group, 80 + shard, 90], [hash64(shard, group, i) for i in range(size)])
        for group in range(groups)
    ]


def made(folder: Path, fleet: EngineFleet, at: Callable[[int, int], None]) -> dict[str, FileRecord]:
    """The files of a job of four shards, as they were taken up."""
    job = RolloutJob(
        store=str(folder),
        folder="rounds/0001/rollouts",
        fingerprint=FINGERPRINT.digest,
        round=1,
        policy_digest="p",
        model=CPU,
        generation=config(),
        sampling=SamplingParams(1.0, 1.0, 0, 400),
        shards={name: requests_of(number) for number, name in enumerate(NAMES)},
    )
    writer = ArtifactWriter(Artifact(Store(job.store), job.folder), FINGERPRINT)
    for name in make_shards(job, fleet, NAMES, at):
        assert writer.take_up(name)
    assert list(writer.files) == NAMES
    writer.finish()
    assert not writer.store.hidden_files(job.folder)
    return writer.files


@pytest.fixture(scope="module")
def undisturbed(fleet: EngineFleet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileRecord]:
    heard: list[tuple[int, int]] = []
    folder = tmp_path_factory.mktemp("undisturbed")
    files = made(folder, fleet, lambda done, total: heard.append((done, total)))
    assert heard[-1] == (48, 48)
    table = Artifact(Store(str(folder)), "rounds/0001/rollouts").read_table(ROLLOUTS)
    assert set(table["engine"].to_pylist()) == {"vllm"}
    assert set(table["seed"].to_pylist()) == {hash64(s, g, i) for s in range(4) for g in range(3) for i in range(4)}
    return files


@pytest.mark.slow
@needs_vllm
@pytest.mark.distributed
def test_logprobs_are_the_trainers_and_ends_are_told_right(fleet: EngineFleet, policy: Path) -> None:
    model, tokenizer = small_policy(0)
    assert check_canary(fleet, policy) < 1e-3
    differences, completions = [], list[Completion]()
    for temperature in (0.0, 0.7, 1.0):
        sampling = SamplingParams(temperature, 1.0, 0, 60)
        groups = fleet.generate(requests_of(0, size=8), sampling)
        assert fleet.generate(requests_of(0, size=8), sampling) == groups
        for request, group in zip(requests_of(0, size=8), groups, strict=True):
            for completion in group:
                ids = torch.tensor([[*request.prompt_ids, *completion.token_ids]])
                with torch.no_grad():
                    logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1] / (temperature or 1.0)
                own = logits.log_softmax(-1)[range(len(completion.token_ids)), completion.token_ids]
                differences += (own - torch.tensor(completion.logprobs)).abs().tolist()
                if temperature == 0:
                    assert (logits.max(-1).values - logits[range(len(logits)), completion.token_ids]).max() < 1e-4
            completions += group
    print(f"{len(differences)} tokens: mean {np.mean(differences):.2e}, max {np.max(differences):.2e} nats")
    assert np.max(differences) < 1e-4
    ends = {tokenizer.eos_token_id, SECOND_END}
    for completion in completions:
        assert (completion.finish_reason == "stop") == (completion.token_ids[-1] in ends)
        assert not ends & set(completion.token_ids[:-1])
        assert len(completion.token_ids) == 60 or completion.finish_reason == "stop"
        assert completion.text == tokenizer.decode(completion.token_ids, skip_special_tokens=True)
    assert {completion.token_ids[-1] for completion in completions} > ends
    assert len({tuple(completion.token_ids) for completion in completions[24:]}) == 48  # every seed its own


@pytest.mark.slow
@needs_vllm
@pytest.mark.distributed
def test_batches_side_by_side_are_those_of_one_after_the_other(fleet: EngineFleet) -> None:
    batches, sampling = [requests_of(number, size=2) for number in range(3)], SamplingParams(1.0, 1.0, 0, 20)
    heard: list[tuple[int, int]] = []
    together = list(generate_batches(fleet, batches, sampling, lambda done, total: heard.append((done, total))))
    assert together == [fleet.generate(batch, sampling) for batch in batches]
    assert heard[-1] == (18, 18)


@pytest.mark.slow
@needs_vllm
@pytest.mark.distributed
def test_top_k_and_top_p_cut_the_distribution_and_its_logprobs(fleet: EngineFleet) -> None:
    (group,) = fleet.generate([Request("a", [1, 70, 80], [hash64(i) for i in range(30)])], SamplingParams(1, 1, 2, 1))
    chances = {completion.token_ids[0]: np.exp(completion.logprobs[0]) for completion in group}
    assert len(chances) == 2
    assert sum(chances.values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
@needs_vllm
@pytest.mark.distributed
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_dies_or_hangs_is_restarted_and_its_shards_are_the_same(
    number: signal.Signals, fleet: EngineFleet, undisturbed: dict[str, FileRecord], tmp_path: Path
) -> None:
    harmed: list[int] = []

    def harm(done: int, total: int) -> None:
        if 0 < done < total and not harmed:
            harmed.append(fleet.process_ids[0])
            os.kill(harmed[0], number)

    assert made(tmp_path, fleet, harm) == undisturbed
    assert harmed
    with pytest.raises(ProcessLookupError):
        os.kill(harmed[0], 0)


@pytest.mark.slow
@needs_vllm
@pytest.mark.distributed
def test_reloaded_weights_are_used_and_wrong_ones_refused(fleet: EngineFleet, policy: Path, tmp_path: Path) -> None:
    requests, sampling = requests_of(0), SamplingParams(1.0, 1.0, 0, 12)
    before = fleet.generate(requests, sampling)
    other = save_small_policy(tmp_path / "other", seed=1)
    fleet.reload(other)
    assert check_canary(fleet, other) < 1e-3
    assert fleet.generate(requests, sampling) != before
    fleet.reload(policy)
    assert fleet.generate(requests, sampling) == before
    with pytest.raises(UserError, match="the model's context of 512"):
        fleet.generate(requests, SamplingParams(1.0, 1.0, 0, 510))
    told = json.loads((other / CANARY_FILE).read_text())
    (other / CANARY_FILE).write_text(json.dumps(told | {"logprobs": [value - 1 for value in told["logprobs"]]}))
    with pytest.raises(UserError, match="does not generate with the weights"):
        fleet.reload(other)


def test_an_engine_that_never_starts_is_given_up_with_its_own_words(policy: Path, tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\necho x >> {tried}\necho the driver is too old >&2\nexit 3\n")
    broken.chmod(0o755)
    with (
        open_engine(policy, CPU, config(python=str(broken), restarts=1)) as engine,
        pytest.raises(UserError, match=r"ended \(status 3\), 2 times in a row(.|\n)*the driver is too old"),
    ):
        engine.probe([1, 2])
    assert tried.read_text() == "x\n" * 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["4", "5", "6", "7"]),
        ({"tensor_parallel": 2}, ["4,5", "6,7"]),
        ({"tensor_parallel": 3}, ["4,5,6"]),
        ({"engines": 2}, ["4", "5"]),
    ],
)
def test_each_engine_sees_gpus_of_its_own(
    settings: dict[str, int], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert share_out(torch.device("cuda"), config(**settings)) == expected
    assert share_out(torch.device("cpu"), config()) == [""]
    with pytest.raises(NotHere, match="asks for 3 x 2 GPUs and 4 can be seen"):
        share_out(torch.device("cuda"), config(engines=3, tensor_parallel=2))


@given(st.integers(0, 2**64 - 1), st.integers(1, 63))
def test_seeds_fit_vllm_and_every_bit_but_the_last_counts(seed: int, bit: int) -> None:
    assert 0 <= vllm_seed(seed) < 2**63
    assert vllm_seed(seed) != vllm_seed(seed ^ (1 << bit))


def test_what_is_missing_or_does_not_fit_is_one_sentence_that_names_the_mend(tmp_path: Path) -> None:
    def checked(vllm: dict[str, object], **more: object) -> None:
        told = {"generation": {"engine": "vllm", "vllm": vllm}, "model": {"device": "cpu"}}
        check_engine(RunConfig.model_validate(told | more))

    with pytest.raises(NotHere, match="make vllm"):
        checked({"python": str(tmp_path / "none")})
    with pytest.raises(UserError, match=r"max_model_len 100 is less than data\.max_prompt_tokens"):
        checked({"max_model_len": 100})
    with pytest.raises(UserError, match="tiny has attention heads"):
        checked({}, model={"name": "tiny", "device": "cpu"})
    empty = tmp_path / "python"
    empty.write_text("#!/bin/sh\n")
    empty.chmod(0o755)
    with pytest.raises(NotHere, match="has no vLLM; make it again with: make vllm"):
        checked({"python": str(empty)})
