"""The judge against a real little server on loopback."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grpo_core.errors import UserError
from grpo_core.rewards import judge
from grpo_core.rewards.score import RewardConfig, build_reward, reward_fingerprint
from grpo_core.rewards.verdict import Sample, Score, Verdict

KEY = "sk-very-secret"


class Handler(BaseHTTPRequestHandler):
    """Behaves as the answer in the request tells it to."""

    server: "Judge"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = request["messages"][0]["content"]
        with self.server.lock:
            self.server.requests.append((self.path, self.headers.get("Authorization"), request))
            self.server.tries[said] += 1
            attempt = self.server.tries[said]
        word = said.split()[0]
        if word == "busy" and attempt == 1:
            self.answer(429, b"{}", {"Retry-After": "0.01"})
        elif word == "down":
            self.answer(500, b"out of\nmemory")
        elif word == "denied":
            self.answer(401, f"no such key: {self.headers['Authorization']}".encode())
        elif word == "moved":
            self.answer(302, b"", {"Location": f"http://127.0.0.1:{self.server.server_port}/elsewhere"})
        elif word == "page":
            self.answer(200, b"<html>welcome</html>")
        elif word == "hang" and attempt <= 2:
            self.server.release.wait(10)
        elif word == "drip" and attempt <= 2:
            self.send_response(200)
            self.end_headers()
            while not self.server.release.wait(0.05):
                self.wfile.write(b" ")
                self.wfile.flush()
        else:
            mark = {"chatty": "Score: 1? no.\nScore: 7.5", "mute": "I can't say.", "generous": "Score: 11"}.get(word)
            self.answer(200, json.dumps({"choices": [{"message": {"content": mark or f"Score: {word}"}}]}).encode())

    def answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class Judge(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.requests: list[tuple[str, str | None, dict[str, object]]] = []
        self.tries: Counter[str] = Counter()
        self.release = threading.Event()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    monkeypatch.setenv("no_proxy", "*")
    with Judge() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.release.set()
        found.shutdown()
        thread.join()


def settings(server: Judge, **options: object) -> RewardConfig:
    base = {"base_url": f"http://127.0.0.1:{server.server_port}/v1", "model": "m", "prompt": "{response} {gold}"}
    return RewardConfig(name="judge", options=base | {"backoff_seconds": 0.001} | options, retries=0)


def marked(server: Judge, *answers: str, **options: object) -> list[Score]:
    return list(build_reward(settings(server, **options))([Sample(str(n), a, "g") for n, a in enumerate(answers)]))


def test_marks_become_rewards_in_order(server: Judge) -> None:
    scores = marked(server, "10", "0", "5", "4.9", "chatty", concurrency=3)
    assert [(s.reward, s.verdict.value) for s in scores] == [
        (1.0, "ok"),
        (0.0, "wrong"),
        (0.5, "ok"),
        (pytest.approx(0.49), "wrong"),
        (0.75, "ok"),
    ]
    assert [s.extracted for s in scores] == ["10", "0", "5", "4.9", "7.5"]
    path, key, request = server.requests[0]
    assert (path, key, request["model"], request["temperature"]) == ("/v1/chat/completions", None, "m", 0.0)


def test_a_range_of_its_own(server: Judge) -> None:
    (score,) = marked(server, "generous", lowest=1, highest=21)
    assert score.reward == 0.5


def test_busy_is_asked_again_and_a_failing_one_so_many_times(server: Judge) -> None:
    busy, down = marked(server, "busy", "down", attempts=3)
    assert (busy.verdict, busy.detail) == (Verdict.ERROR, "the judge gave no mark: 'Score: busy'")
    assert (down.verdict, down.reward) == (Verdict.ERROR, None)
    assert down.detail == "the judge answered HTTP 500: out of memory"
    assert server.tries == {"busy g": 2, "down g": 3}


def test_a_garbled_reply_is_an_error_never_a_zero(server: Judge) -> None:
    for score, words in zip(
        marked(server, "page", "mute", "generous", attempts=2),
        ("is no chat completion", 'gave no mark: "I can\'t say."', "mark 11 is not between 0 and 10"),
        strict=True,
    ):
        assert (score.verdict, score.reward) == (Verdict.ERROR, None)
        assert words in score.detail
    assert server.tries == {"page g": 2, "mute g": 1, "generous g": 1}


def test_a_refusal_is_final_and_its_words_do_not_hold_the_key(server: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    denied, moved = marked(server, "denied", "moved", api_key_env="JUDGE_KEY", attempts=3)
    assert denied.verdict is Verdict.ERROR
    assert denied.detail == "the judge answered HTTP 401: no such key: Bearer ***"
    assert moved.detail.startswith("the judge answered HTTP 302")
    assert {(path, key) for path, key, _ in server.requests} == {("/v1/chat/completions", f"Bearer {KEY}")}
    assert set(server.tries.values()) == {1}


@pytest.mark.parametrize("answer", ["hang", "drip"])
def test_a_slow_judge_is_a_timeout(server: Judge, answer: str) -> None:
    (score,) = marked(server, answer, timeout_seconds=0.2, attempts=2)
    assert (score.verdict, score.reward) == (Verdict.TIMEOUT, None)
    assert score.detail == "the judge took over 0.2 s"
    assert server.tries == {f"{answer} g": 2}


def test_what_failed_is_asked_once_more_at_the_end_and_only_that(server: Judge) -> None:
    config = settings(server, attempts=1).model_copy(update={"retries": 2})
    scores = build_reward(config)([Sample("0", "busy", ""), Sample("1", "3", "")])
    assert scores[1].reward == 0.3
    assert server.tries == {"busy ": 3, "3 ": 1}  # 429, then twice no mark


def test_nobody_there_is_an_error(server: Judge) -> None:
    config = settings(server, base_url="http://127.0.0.1:9/v1", attempts=1)
    (score,) = build_reward(config)([Sample("0", "5", "")])
    assert score.verdict is Verdict.ERROR
    assert "can't be reached" in score.detail


def test_a_key_that_is_not_there_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    options = {"base_url": "http://localhost/v1", "model": "m", "api_key_env": "JUDGE_KEY"}
    with pytest.raises(UserError, match="set the environment variable JUDGE_KEY"):
        build_reward(RewardConfig(name="judge", options=options))
    fingerprint = reward_fingerprint(RewardConfig(name="judge", options=options))
    monkeypatch.setenv("JUDGE_KEY", KEY)
    for same in ({}, {"concurrency": 2}, {"attempts": 9}):
        assert reward_fingerprint(RewardConfig(name="judge", options=options | same)) == fingerprint
    assert reward_fingerprint(RewardConfig(name="judge", options=options | {"prompt": "{response}"})) != fingerprint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "http://user:pw@host/v1"}, "without user, password"),
        ({"base_url": "host/v1"}, "http://"),
        ({"prompt": "no answer"}, "must contain {response}"),
        ({"prompt": "{response} {other}"}, "only {prompt}, {response} and {gold}"),
        ({"score_pattern": "\\d"}, "0 groups"),
        ({"lowest": 5, "highest": 5}, "highest must be above lowest"),
        ({"api_key_env": "sk-abc"}, "api_key_env"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], words: str) -> None:
    config = RewardConfig(name="judge", options={"base_url": "http://localhost/v1", "model": "m"} | options)
    with pytest.raises(UserError, match=words):
        build_reward(config)


class Clock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return 100.0 + sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_rate_limit_spaces_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(judge, "time", clock)
    limit = judge._RateLimit(per_minute=120)
    for _ in range(3):
        limit.wait()
    assert clock.slept == [0.0, 0.5, 0.5]


def test_waits_double_unless_the_endpoint_asks_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        asked = 0

        def ask(self, _: object) -> str:
            self.asked += 1
            retry_after = 5.0 if self.asked == 3 else 0.0
            raise judge.JudgeFailed("no", may_pass=True, retry_after=retry_after)

    clock = Clock()
    monkeypatch.setattr(judge, "time", clock)
    config = judge.JudgeConfig(base_url="http://localhost/v1", model="m", attempts=5, backoff_seconds=0.5)
    with pytest.raises(judge.JudgeFailed):
        judge._with_backoff(Failing(), {}, config, judge._RateLimit(None))
    assert [seconds for seconds in clock.slept if seconds] == [0.5, 1.0, 5.0, 4.0]
