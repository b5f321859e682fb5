"""A user's own rewards: options, coroutines, verdicts, entry points, and what of them a fingerprint holds."""

import asyncio
import importlib
import shutil
import sys
from pathlib import Path

import pytest

from grpo_core.errors import UserError
from grpo_core.rewards.own import own_code
from grpo_core.rewards.score import RewardConfig, build_reward, reward_fingerprint
from grpo_core.rewards.verdict import Sample, Verdict

MODULE = """
import asyncio
from grpo_core.rewards.verdict import Score, Verdict

def longer_than(samples, *, length, pay=1.0):
    return [pay if len(s.response) > length else 0.0 for s in samples]

async def slowly(samples, factor=1.0):
    async def one(sample):
        await asyncio.sleep(0)
        return factor * len(sample.response)
    return await asyncio.gather(*(one(s) for s in samples))

async def broken(samples):
    raise RuntimeError("no network")

def verdicts(samples):
    return [Verdict(s.response) for s in samples]

def careless(samples):
    return [Score(Verdict.ERROR, 0.0), Score(Verdict.OK, None)]

class Stateful:
    def __call__(self, samples):
        return [1.0] * len(samples)

instance = Stateful()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_for_tests.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_for_tests", raising=False)


def config(name: str, **options: object) -> RewardConfig:
    return RewardConfig(name=name, options=options, retries=0)


def rewards(found: RewardConfig, *responses: str) -> list[float | None]:
    return [s.reward for s in build_reward(found)([Sample(str(n), r, "") for n, r in enumerate(responses)])]


def test_options_are_keyword_arguments() -> None:
    assert rewards(config("own_for_tests:longer_than", length=2), "abc", "ab") == [1.0, 0.0]
    assert rewards(config("own_for_tests:longer_than", length=0, pay=2.5), "abc") == [2.5]
    assert rewards(config("own_for_tests:instance"), "abc") == [1.0]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("longer_than", {}, "missing a required argument: 'length'"),
        ("longer_than", {"length": 1, "cost": 2}, "unexpected keyword argument 'cost'"),
        ("verdicts", {"n": 1}, "unexpected keyword argument 'n'"),
    ],
)
def test_options_that_it_does_not_take_are_told_before_anything_is_scored(
    name: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        build_reward(config(f"own_for_tests:{name}", **options))


def test_a_coroutine_function_is_awaited_inside_and_outside_of_a_loop() -> None:
    found = config("own_for_tests:slowly", factor=2.0)
    assert rewards(found, "abc", "") == [6.0, 0.0]

    async def inside() -> list[float | None]:
        return rewards(found, "abc", "")

    assert asyncio.run(inside()) == [6.0, 0.0]
    with pytest.raises(UserError, match="own_for_tests:broken failed with RuntimeError: no network"):
        rewards(config("own_for_tests:broken"), "a")


def test_verdicts_are_rewards_only_where_they_are_findings() -> None:
    names = [verdict.value for verdict in Verdict]
    assert dict(zip(names, rewards(config("own_for_tests:verdicts"), *names), strict=True)) == {
        "ok": 1.0,
        "wrong": 0.0,
        "unparsable": 0.0,
        "timeout": None,
        "error": None,
        "missing": None,
    }


def test_a_careless_score_pays_nothing() -> None:
    scores = build_reward(config("own_for_tests:careless"))([Sample("0", "", ""), Sample("1", "", "")])
    assert [(s.verdict, s.reward) for s in scores] == [(Verdict.ERROR, None), (Verdict.ERROR, None)]


def entry_point(folder: Path, package: str, value: str, version: str = "1.0") -> None:
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[grpo_rounds.rewards]\nbrief = {value}\n")


def test_an_installed_package_offers_a_reward_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'brief' is not known"):
        build_reward(config("brief"))
    entry_point(tmp_path, "briefness", "own_for_tests:longer_than")
    importlib.invalidate_caches()
    assert rewards(config("brief", length=1), "ab", "a") == [1.0, 0.0]
    entry_point(tmp_path, "rival", "own_for_tests:verdicts")
    importlib.invalidate_caches()
    with pytest.raises(UserError, match=r"several packages \(own_for_tests:longer_than, own_for_tests:verdicts\)"):
        build_reward(config("brief", length=1))


def test_fingerprint_changes_with_code_options_and_the_package_behind_a_name(tmp_path: Path) -> None:
    def fingerprint(name: str = "brief", length: int = 1) -> str:
        own_code.cache_clear()  # as in a process that starts later
        importlib.invalidate_caches()
        return reward_fingerprint(config(name, length=length))

    entry_point(tmp_path, "briefness", "own_for_tests:longer_than")
    base = fingerprint()
    assert fingerprint() == base
    assert fingerprint(length=2) != base
    assert fingerprint("own_for_tests:longer_than") != base
    (tmp_path / "own_for_tests.py").write_text(MODULE + "# edited\n")
    edited = fingerprint()
    assert edited != base
    shutil.rmtree(tmp_path / "briefness-1.0.dist-info")
    entry_point(tmp_path, "briefness", "own_for_tests:longer_than", "1.1")
    assert fingerprint() not in (base, edited)
