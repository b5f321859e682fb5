"""The ``judge`` reward: a language model behind an OpenAI-compatible endpoint gives marks."""

import os
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from grpo_core.errors import UserError
from grpo_core.rewards.judge_client import Endpoint, JudgeFailed, JudgeTimeout
from grpo_core.rewards.verdict import RewardFunction, Sample, Score, Verdict

JUDGE_VERSION = 1

_PROMPT = """\
Mark the answer to a question, from 0 (wrong or useless) to 10 (right and clear).

Question:
{prompt}

Reference:
{gold}

Answer:
{response}

Reply with one line: Score: <number>"""


class JudgeConfig(BaseModel):
    """Options of ``judge``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = Field(description="Address up to and without /chat/completions, e.g. http://localhost:8000/v1.")
    model: str = Field(min_length=1, description="The model's name at that endpoint.")
    prompt: str = Field(_PROMPT, description="What it is asked; {prompt}, {response} and {gold} are filled in.")
    score_pattern: str = Field(
        r"(?i)score\s*[:=]\s*(-?\d+(?:\.\d+)?)",
        description="Regex with one group that finds the mark; the last one counts.",
    )
    lowest: float = Field(0.0, allow_inf_nan=False, description="The mark that becomes reward 0.")
    highest: float = Field(10.0, allow_inf_nan=False, description="The mark that becomes reward 1.")
    ok_from: float = Field(0.5, description="A reward of so much or more is the verdict ok, below it wrong.")
    temperature: float = Field(0.0, ge=0, description="Of the judge's own sampling.")
    max_tokens: int = Field(256, ge=1, description="Longest reply.")
    api_key_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_]\w*$",
        description="Name of the environment variable that holds the key; never the key.",
    )
    timeout_seconds: float = Field(60.0, gt=0, description="Wall-clock limit of one request.")
    attempts: int = Field(4, ge=1, le=20, description="Requests for one mark, while the endpoint is busy or failing.")
    backoff_seconds: float = Field(
        1.0,
        ge=0,
        description="Wait before the second attempt, doubled for each further one; a Retry-After goes before it.",
    )
    concurrency: int = Field(8, ge=1, le=256, description="Requests at a time.")
    requests_per_minute: float | None = Field(None, gt=0, description="Rate limit over all of them; null: none.")

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        if not re.fullmatch(r"https?://[^\s@?#]+", url):
            raise ValueError("write http:// or https:// and the address, without user, password or query")
        return url.rstrip("/")

    @field_validator("prompt")
    @classmethod
    def _is_template(cls, template: str) -> str:
        try:
            filled = template.format(prompt="", response="\x00", gold="")
        except (ValueError, LookupError, AttributeError) as error:
            raise ValueError(
                "only {prompt}, {response} and {gold} may stand in braces; double any other brace"
            ) from error
        if "\x00" not in filled:
            raise ValueError("it must contain {response}, where the answer goes")
        return template

    @field_validator("score_pattern")
    @classmethod
    def _has_one_group(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"it is not a regular expression ({error})") from error
        if groups != 1:
            raise ValueError(f"it has {groups} groups; put the number, and only that, in one")
        return pattern

    @model_validator(mode="after")
    def _has_a_range(self) -> "JudgeConfig":
        if self.highest <= self.lowest:
            raise ValueError("highest must be above lowest")
        return self


def judge_reward(config: JudgeConfig) -> RewardFunction:
    """R = (mark - lowest) / (highest - lowest), in [0, 1].

    A request that fails for good, a reply without a mark and a mark out of range are ``error``, one over the time limit
    is ``timeout``: no rollout is rewarded or punished for its judge's troubles. Beware: a policy may learn to talk to
    its judge instead of answering; keep a reward beside it that can't be talked to.

    Raises:
        UserError: the environment variable that shall hold the key is not set.
    """
    key = os.environ.get(config.api_key_env) if config.api_key_env else None
    if config.api_key_env and not key:
        raise UserError(f"The judge's key is not there: set the environment variable {config.api_key_env}.")
    endpoint = Endpoint(f"{config.base_url}/chat/completions", key, config.timeout_seconds)
    limiter = _RateLimit(config.requests_per_minute)

    def ask(sample: Sample) -> Score:
        started = time.perf_counter()
        question = config.prompt.format(prompt=sample.prompt, response=sample.response, gold=sample.gold)
        request = {
            "model": config.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
        }
        try:
            reply = _with_backoff(endpoint, request, config, limiter)
        except JudgeTimeout as error:
            return Score(Verdict.TIMEOUT, None, detail=str(error), seconds=time.perf_counter() - started)
        except JudgeFailed as error:
            return Score(Verdict.ERROR, None, detail=str(error), seconds=time.perf_counter() - started)
        return _marked(reply, config, time.perf_counter() - started)

    def score(samples: Sequence[Sample]) -> list[Score]:
        with ThreadPoolExecutor(config.concurrency, thread_name_prefix="judge") as pool:
            return list(pool.map(ask, samples))

    return score


def _marked(reply: str, config: JudgeConfig, seconds: float) -> Score:
    marks = re.findall(config.score_pattern, reply)
    try:
        mark = float(marks[-1]) if marks else None
    except ValueError:
        mark = None
    if mark is None:
        return Score(Verdict.ERROR, None, detail=f"the judge gave no mark: {reply[:80]!r}", seconds=seconds)
    value = (mark - config.lowest) / (config.highest - config.lowest)
    if not 0 <= value <= 1:  # also false for NaN
        detail = f"the judge's mark {mark:g} is not between {config.lowest:g} and {config.highest:g}"
        return Score(Verdict.ERROR, None, detail=detail, seconds=seconds)
    verdict = Verdict.OK if value >= config.ok_from else Verdict.WRONG
    return Score(verdict, value, {"judge": value}, extracted=marks[-1], seconds=seconds)


def _with_backoff(endpoint: Endpoint, request: dict[str, object], config: JudgeConfig, limiter: "_RateLimit") -> str:
    """The reply; waits backoff, 2 backoff, 4 backoff, … between attempts, or as long as the endpoint asks for.

    Raises:
        JudgeFailed: the last attempt failed, or one failed in a way that another would, too.
    """
    for attempt in range(config.attempts):
        limiter.wait()
        try:
            return endpoint.ask(request)
        except JudgeFailed as error:
            if not error.may_pass or attempt + 1 == config.attempts:
                raise
            # An endpoint that asks for more than the time limit of a request is down, as far as this run goes.
            time.sleep(min(max(config.backoff_seconds * 2**attempt, error.retry_after), config.timeout_seconds))
    raise AssertionError("attempts is at least 1")


class _RateLimit:
    """Lets one caller through every so many seconds, whatever their number."""

    def __init__(self, per_minute: float | None) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        with self._lock:
            now = time.monotonic()
            mine = max(now, self._next)
            self._next = mine + self._interval
        time.sleep(mine - now)
