"""Rollouts by vLLM: ids in, ids and the logprobs of the very distribution that they were drawn from out.

Only an environment of vLLM's own can import this (``worker.py`` runs there). What could make equal calls unequal is
fixed: all requests of a call are known before the first step, the scheduler runs in this thread and in step with the
model, the prefix cache is empty at the beginning, and each completion is one request with a seed of its own.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import vllm
from transformers import AutoConfig, AutoTokenizer
from transformers import GenerationConfig as EndsOfText
from vllm.platforms import current_platform

from grpo_core.errors import UserError
from grpo_core.generation.engine import NOT_FINITE, Completion, Request, SamplingParams, check_length, eos_ids
from grpo_core.generation.vllm_config import VllmConfig, vllm_seed
from grpo_core.schemas import Progress, no_progress

_CPU_CACHE_GIB = 1.0


class VllmEngine:
    """The ``Engine`` over ``vllm.LLM`` in this process.

    Args:
        policy: folder that the trainer saved.
        dtype: "float32" or "bfloat16": the trainer's own.
        beat: called after every step of the model.
    """

    name = "vllm"
    version = vllm.__version__

    def __init__(self, policy: Path, dtype: str, settings: VllmConfig, beat: Callable[[], None] = lambda: None) -> None:
        on_cpu = current_platform.is_cpu()
        gib = settings.kv_cache_gib or (_CPU_CACHE_GIB if on_cpu else None)
        self._sleeps = settings.keep_alive and not on_cpu
        self._beat = beat
        self.precision = dtype
        self._read_ends(policy)
        self._llm = vllm.LLM(
            model=str(policy),
            skip_tokenizer_init=True,
            generation_config="vllm",
            dtype=dtype,
            tensor_parallel_size=settings.tensor_parallel,
            gpu_memory_utilization=settings.memory_share,
            kv_cache_memory_bytes=None if gib is None else int(gib * 2**30),
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_sequences,
            enforce_eager=on_cpu if settings.eager is None else settings.eager,
            enable_sleep_mode=self._sleeps,
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            async_scheduling=False,
            seed=0,
        )
        self.context = int(self._llm.llm_engine.model_config.max_model_len)

    def probe(self, ids: Sequence[int]) -> list[float]:
        """See ``Engine.probe``."""
        self._forget()
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        (output,) = self._run([(list(ids), sampling)], no_progress)
        found = output.prompt_logprobs[1:]
        return [place[token].logprob for place, token in zip(found, ids[1:], strict=True)]

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, progress: Progress = no_progress
    ) -> list[list[Completion]]:
        """All requests in one batch; see ``Engine.generate``."""
        if not any(request.seeds for request in requests):
            return [[] for _ in requests]
        check_length(requests, sampling, self.context)
        self._forget()
        asked = [
            (list(request.prompt_ids), self._sampling(sampling, seed)) for request in requests for seed in request.seeds
        ]
        answers = iter([self._completion(output.outputs[0]) for output in self._run(asked, progress)])
        return [[next(answers) for _ in request.seeds] for request in requests]

    def reload(self, policy: Path) -> None:
        """Take the weights of another policy of the same model; what was computed with the old ones is forgotten."""
        if self._llm.llm_engine.is_sleeping():
            self._llm.wake_up(tags=["weights"])
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(policy)})
        if self._llm.llm_engine.is_sleeping():
            self._llm.wake_up(tags=["kv_cache"])
        self._read_ends(policy)
        self._forget()

    def rest(self) -> None:
        """Give back a GPU's memory until the next ``reload``; on a CPU all stays."""
        if self._sleeps:
            self._llm.sleep(level=2)

    def close(self) -> None:
        """Nothing: memory is free when the process ends, and only then for certain."""

    def _read_ends(self, policy: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(str(policy), local_files_only=True)
        holders = [AutoConfig.from_pretrained(str(policy), local_files_only=True), self._tokenizer]
        if (policy / "generation_config.json").is_file():
            holders.append(EndsOfText.from_pretrained(str(policy), local_files_only=True))
        self._eos = sorted(eos_ids(*holders))

    def _forget(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM still holds blocks of requests that have ended")

    def _sampling(self, sampling: SamplingParams, seed: int) -> vllm.SamplingParams:
        return vllm.SamplingParams(
            n=1,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=0.0,
            seed=vllm_seed(seed),
            max_tokens=sampling.max_new_tokens,
            logprobs=0,
            stop_token_ids=self._eos,
            ignore_eos=True,  # every end is among the ids above
            detokenize=False,
        )

    def _run(self, asked: Sequence[tuple[list[int], vllm.SamplingParams]], progress: Progress) -> list[Any]:
        """The outputs, in order. All requests are waiting before the first step, so batches are always the same."""
        engine = self._llm.llm_engine
        for number, (ids, params) in enumerate(asked):
            engine.add_request(str(number), {"prompt_token_ids": ids}, params)
        outputs: dict[int, Any] = {}
        while engine.has_unfinished_requests():
            before = len(outputs)
            outputs.update((int(output.request_id), output) for output in engine.step() if output.finished)
            self._beat()
            if len(outputs) > before:
                progress(len(outputs), len(asked))
        return [outputs[number] for number in range(len(asked))]

    def _completion(self, output: Any) -> Completion:
        ids = list(output.token_ids)
        logprobs = [place[token].logprob for place, token in zip(output.logprobs, ids, strict=True)]
        if not all(map(math.isfinite, logprobs)):
            raise UserError(NOT_FINITE)
        if output.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM ended a completion for the reason {output.finish_reason!r}")
        return Completion(
            token_ids=ids,
            logprobs=logprobs,
            text=self._tokenizer.decode(ids, skip_special_tokens=True),
            finish_reason=output.finish_reason,
        )
