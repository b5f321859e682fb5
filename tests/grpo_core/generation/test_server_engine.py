"""A real vLLM server as an engine: its ids and logprobs, the policies that it loads, and what it is refused for."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
import torch
from support import ROOT, free_port
from vllm_policy import needs_vllm, save_small_policy, small_policy

from grpo_core.canary import check_canary
from grpo_core.config import RunConfig
from grpo_core.errors import NotHere, UserError
from grpo_core.generation.check import check_engine
from grpo_core.generation.engine import GenerationConfig, Request, SamplingParams
from grpo_core.generation.open import open_engine
from grpo_core.generation.server_engine import KEY
from grpo_core.generation.vllm_environment import surroundings
from grpo_core.models import ModelConfig
from grpo_core.seeding import hash64

CPU = ModelConfig(device="cpu", threads=1)
SAMPLING = SamplingParams(0.8, 1.0, 0, 40)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("policies")
    return [save_small_policy(folder / name, seed) for seed, name in enumerate(("first", "second"))]


@pytest.fixture(scope="module")
def server(policies: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on the first policy that offers to load others and wants a key."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log.txt"
    module = (str(ROOT / ".venv-vllm/bin/python"), "-m", "vllm.entrypoints.openai.api_server")
    told = ("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(2**28), "--api-key", "open sesame")
    how = ("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs")
    with log.open("w") as output:
        process = subprocess.Popen(
            [*module, "--model", str(policies[0]), "--host", "127.0.0.1", "--port", str(port), *told, *how],
            env=surroundings("", 1, compiled=False) | {"VLLM_SERVER_DEV_MODE": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                httpx.get(f"http://127.0.0.1:{port}/health").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "open sesame")


@contextmanager
def without_loading(server: str) -> Iterator[str]:
    """The same server behind a door that lets no order to load weights through."""

    class Door(BaseHTTPRequestHandler):
        def _pass(self) -> None:
            if self.path == "/collective_rpc":
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers}
            answer = httpx.request(self.command, server + self.path, content=body, headers=headers, timeout=60)
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = _pass

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as door:
        Thread(target=door.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{door.server_address[1]}"
        door.shutdown()


def config(url: str) -> GenerationConfig:
    return GenerationConfig.model_validate({"engine": "server", "server": {"url": url}})


@pytest.mark.slow
@needs_vllm
@pytest.mark.distributed
def test_a_server_loads_each_policy_and_gives_its_ids_and_logprobs(server: str, policies: list[Path]) -> None:
    requests = [Request(str(n), [1, 70 + n, 80], [hash64(n, i) for i in range(6)]) for n in range(3)]
    for seed in (1, 0):
        model, tokenizer = small_policy(seed)
        heard: list[tuple[int, int]] = []
        with open_engine(policies[seed], CPU, config(server)) as engine:
            assert check_canary(engine, policies[seed]) < 1e-3
            groups = engine.generate(requests, SAMPLING, lambda done, total, heard=heard: heard.append((done, total)))
        assert heard == [(done, 18) for done in range(1, 19)]
        assert {completion.finish_reason for group in groups for completion in group} == {"stop", "length"}
        for request, group in zip(requests, groups, strict=True):
            for completion in group:
                ids = torch.tensor([[*request.prompt_ids, *completion.token_ids]])
                with torch.no_grad():
                    logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1] / SAMPLING.temperature
                own = logits.log_softmax(-1)[range(len(completion.token_ids)), completion.token_ids]
                assert (own - torch.tensor(completion.logprobs)).abs().max() < 1e-4
                assert completion.text == tokenizer.decode(completion.token_ids, skip_special_tokens=True)


@pytest.mark.slow
@needs_vllm
@pytest.mark.distributed
def test_a_server_that_cannot_load_weights_is_judged_by_the_canary(server: str, policies: list[Path]) -> None:
    with without_loading(server) as url:
        with open_engine(policies[0], CPU, config(url)) as engine:
            assert check_canary(engine, policies[0]) < 1e-3
        with (
            open_engine(policies[1], CPU, config(url)) as engine,
            pytest.raises(UserError, match="does not generate with the weights"),
        ):
            check_canary(engine, policies[1])
        low = ModelConfig(device="cpu", dtype="bfloat16")
        with pytest.raises(UserError, match="VLLM_SERVER_DEV_MODE=1"), open_engine(policies[0], low, config(url)):
            pass


@pytest.mark.slow
@needs_vllm
@pytest.mark.distributed
def test_a_server_is_asked_before_a_run_whether_all_fits(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(url: str, **more: object) -> None:
        generation = {"engine": "server", "server": {"url": url} | more, "max_new_tokens": 100}
        check_engine(RunConfig.model_validate({"generation": generation, "data": {"max_prompt_tokens": 400}}))

    check(server)
    with pytest.raises(NotHere, match="'other' is not served there"):
        check(server, model="other")
    with pytest.raises(NotHere, match="does not answer as a vLLM server does"):
        check(f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv(KEY, "another")
    with pytest.raises(NotHere, match=r"does not answer .*401"):
        check(server)
    monkeypatch.setenv(KEY, "open sesame")
    with pytest.raises(UserError, match="takes 512 tokens"):
        check_engine(RunConfig.model_validate({"generation": {"engine": "server", "server": {"url": server}}}))
