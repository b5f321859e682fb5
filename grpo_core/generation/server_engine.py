"""Rollouts by an OpenAI-compatible vLLM server: token ids in, token ids and processed logprobs out, a seed a request.

The server is somebody else's process. Its batches depend on what else it does at the time, so equal calls give equal
results only as far as its kernels don't mind the batch. What can be made sure of is: it returns ids, its logprobs are
those of the distribution that it draws from, and its weights are the trainer's.
"""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from transformers import AutoConfig
from transformers import GenerationConfig as EndsOfText

from grpo_core.errors import NotHere, UserError
from grpo_core.generation.engine import NOT_FINITE, Completion, Request, SamplingParams, check_length, eos_ids
from grpo_core.generation.vllm_config import ServerConfig, vllm_seed
from grpo_core.models import ModelConfig, compute_dtype, load_tokenizer, resolve_device
from grpo_core.schemas import Progress, no_progress

KEY = "GRPO_ROUNDS_SERVER_KEY"
_ATTEMPTS = 3


class ServerEngine:
    """The ``Engine`` over a server, which is made to load the policy where it offers that.

    Args:
        policy: folder that the trainer saved; for a reload the server has to see it at the same path.
        precision: the trainer's: "float32" or "bfloat16".

    Raises:
        NotHere: no such server answers.
        UserError: it can't do what is needed; the sentence says how to start it.
    """

    name = "vllm-server"

    def __init__(self, policy: Path, precision: str, config: ServerConfig) -> None:
        self.precision = precision
        self._connections = config.connections
        self._server = Server(config)
        self.version = self._server.version
        self._tokenizer = load_tokenizer(policy)
        holders = [AutoConfig.from_pretrained(str(policy), local_files_only=True), self._tokenizer]
        if (policy / "generation_config.json").is_file():
            holders.append(EndsOfText.from_pretrained(str(policy), local_files_only=True))
        self._eos = eos_ids(*holders)
        self._load(policy)
        self._check_logprobs()

    def probe(self, ids: Sequence[int]) -> list[float]:
        """See ``Engine.probe``."""
        answer = self._server.complete({"prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0})
        found = answer["prompt_logprobs"][1:]
        return [place[str(token)]["logprob"] for place, token in zip(found, ids[1:], strict=True)]

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, progress: Progress = no_progress
    ) -> list[list[Completion]]:
        """All completions asked for side by side; see ``Engine.generate``, and above what equal calls give."""
        asked = [(list(request.prompt_ids), seed) for request in requests for seed in request.seeds]
        if not asked:
            return [[] for _ in requests]
        check_length(requests, sampling, self._server.context)
        self._server.post("/reset_prefix_cache")
        with ThreadPoolExecutor(self._connections) as pool:
            futures = [pool.submit(self._complete, ids, seed, sampling) for ids, seed in asked]
            try:
                for done, future in enumerate(as_completed(futures), start=1):
                    future.result()
                    progress(done, len(asked))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        answers = iter(futures)
        return [[next(answers).result() for _ in request.seeds] for request in requests]

    def close(self) -> None:
        """Close the connections; the server stays."""
        self._server.close()

    def _complete(self, ids: list[int], seed: int, sampling: SamplingParams) -> Completion:
        answer = self._server.complete(
            {
                "prompt": ids,
                "n": 1,
                "seed": vllm_seed(seed),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": 0.0,
                "max_tokens": sampling.max_new_tokens,
                "stop_token_ids": sorted(self._eos),
                "ignore_eos": True,  # every end is among the ids above
            }
        )
        token_ids, logprobs = answer["token_ids"], answer["logprobs"]["token_logprobs"]
        if len(token_ids) != len(logprobs) or answer["finish_reason"] not in ("stop", "length"):
            raise UserError(
                f"The server at {self._server.url} ended a completion for the reason '{answer['finish_reason']}' with "
                f"{len(token_ids)} ids and {len(logprobs)} logprobs; look at its log."
            )
        if not all(value is not None and math.isfinite(value) for value in logprobs):
            raise UserError(NOT_FINITE)
        return Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            text=self._tokenizer.decode(token_ids, skip_special_tokens=True),
            finish_reason=answer["finish_reason"],
        )

    def _load(self, policy: Path) -> None:
        """Let the server load the policy; without a way to, only the canary, in float32, can tell whether it has."""
        order = {"method": "reload_weights", "kwargs": {"weights_path": str(policy.absolute())}}
        answer = self._server.post("/collective_rpc", order)
        if answer.status_code == 404 and self.precision != "float32":
            raise UserError(
                f"The server at {self._server.url} does not offer to load weights, and in {self.precision} the canary "
                "can't tell one round's from the next; start it with VLLM_SERVER_DEV_MODE=1 where it sees the run's "
                "folder."
            )
        if answer.status_code not in (200, 404):
            raise UserError(
                f"The server at {self._server.url} could not load '{policy}' (status {answer.status_code}); it has to "
                "see the run's folder at the same path, and to serve a model of the same kind."
            )

    def _check_logprobs(self) -> None:
        # One token is left, so its probability is 1 if the logprob is of the distribution that is drawn from.
        told = {"prompt": sorted(self._eos)[:1], "max_tokens": 1, "temperature": 2.0, "top_k": 1, "ignore_eos": True}
        if abs(self._server.complete(told)["logprobs"]["token_logprobs"][0]) > 1e-6:
            raise UserError(
                f"The server at {self._server.url} gives logprobs from before temperature, top-k and top-p; start it "
                "with --logprobs-mode processed_logprobs."
            )


@contextmanager
def open_server(policy: Path, model: ModelConfig, config: ServerConfig) -> Iterator[ServerEngine]:
    """The engine over a server, in the trainer's precision; its connections are closed afterwards."""
    dtype = compute_dtype(model, resolve_device(model))
    engine = ServerEngine(policy, str(dtype).removeprefix("torch."), config)
    try:
        yield engine
    finally:
        engine.close()


class Server:
    """The HTTP side of a vLLM server. Raises NotHere when none answers."""

    def __init__(self, config: ServerConfig) -> None:
        self.url = config.url.rstrip("/")
        key = os.environ.get(KEY)
        self._client = httpx.Client(
            base_url=self.url,
            timeout=config.timeout_seconds,
            limits=httpx.Limits(max_connections=config.connections),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        try:
            models = self._client.get("/v1/models", timeout=10).raise_for_status().json()["data"]
            self.version = str(self._client.get("/version", timeout=10).raise_for_status().json()["version"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            self.close()
            raise NotHere(
                f"generation.server.url {self.url} does not answer as a vLLM server does ({error}); start one there, "
                f"or mend the address (a key goes into {KEY})."
            ) from error
        served = [model["id"] for model in models]
        wanted = config.model or served[0]
        if wanted not in served:
            self.close()
            raise NotHere(f"generation.server.model '{wanted}' is not served there; it can be: {', '.join(served)}.")
        self._model = wanted
        self.context: int | None = models[served.index(wanted)].get("max_model_len")

    def post(self, path: str, body: Any = None) -> httpx.Response:
        """One request as it is. Raises UserError when the server can't be reached."""
        try:
            return self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise UserError(self._gone(error)) from error

    def complete(self, told: dict[str, Any]) -> dict[str, Any]:
        """The one choice of a completion with its ids and logprobs; asked again when the server fails on the way."""
        body = {"model": self._model, "logprobs": 0, "return_token_ids": True, **told}
        for attempt in range(_ATTEMPTS):
            try:
                answer = self._client.post("/v1/completions", json=body)
                if answer.status_code >= 500 and attempt + 1 < _ATTEMPTS:
                    continue
                choice: dict[str, Any] = answer.raise_for_status().json()["choices"][0]
            except httpx.TransportError as error:
                if attempt + 1 < _ATTEMPTS:
                    continue
                raise UserError(self._gone(error)) from error
            except (httpx.HTTPError, ValueError, LookupError) as error:
                raise UserError(
                    f"The server at {self.url} refuses a completion ({answer.text[:200]}); start it with the policy's "
                    "own model, and look at its log."
                ) from error
            break
        if choice.get("token_ids") is None:
            raise UserError(f"The server at {self.url} returns no token ids; take a vLLM that knows return_token_ids.")
        return choice

    def close(self) -> None:
        self._client.close()

    def _gone(self, error: Exception) -> str:
        return (
            f"The server at {self.url} is gone ({error or type(error).__name__}); start it and run the same command "
            "again, finished work is kept."
        )
