"""People in the loop: traces to label, labels pulled into a round, what they change, and the report that shows it."""

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mlflow import MlflowClient
from mlflow.entities import AssessmentSource, Expectation, Feedback
from mlflow.entities.trace import Trace
from mlflow.tracing.client import TracingClient
from stored_run import store_run
from support import TINY, digests

from flows.branch import Wish, make_branch, plan_branch
from flows.stages import examine
from grpo_core.artifacts import ArtifactWriter
from grpo_core.errors import UserError
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import ADVANTAGES, LABELS, PLAN, REWARDS
from tasks import compute_advantages, pull_labels, score_rewards, traces
from tasks.report import report_digest, round_report
from tasks.round_labels import stored_labels
from tasks.run import Run, open_run, round_folder
from tasks.stage import execute
from tasks.tracking import Tracker

HOSTILE = "<script>alert('x')</script> \u202e </pre> {{ 7 * 7 }} \0 42"
TEXTS = {
    1: {"a": ["so 42", "\\boxed{42}", "41", "no idea"], "b": ["7", HOSTILE, "\\boxed{8}", "9"]},
    2: {"a": ["41", "\\boxed{41}", "40", "no idea"], "b": ["7", "42", "\\boxed{42}", "9"]},
    3: {"b": ["7", "42", "42", "42"]},
}


@pytest.fixture(scope="module")
def first_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of three rounds with rollouts, and with MLflow's store; the first round is scored and there.

    Making it takes seconds, and copies are as good: the run's name in MLflow is its own.
    """
    folder = tmp_path_factory.mktemp("first")
    run = store_run(folder / "run", TEXTS, name="demo")
    for number, groups in TEXTS.items():
        plan = [
            {"position": n, "prompt_id": p, "epoch": 0, "turn": "epoch", "reserve": False} for n, p in enumerate(groups)
        ]
        location = run.artifact(round_folder(number, "plan.parquet"))
        writer = ArtifactWriter(location, Fingerprint("plan_round", number, 1, {}, {}))
        writer.write_table("plan.parquet", pa.Table.from_pylist(plan, schema=PLAN))
        writer.finish()
    finish(run, 1)
    assert Tracker(run).sync() is None
    return folder


@pytest.fixture
def run(first_round: Path, tmp_path: Path) -> Run:
    shutil.copytree(first_round / "run", tmp_path / "run")
    shutil.copy(first_round / "mlflow.db", tmp_path)
    return open_run(str(tmp_path / "run"))


def changed(run: Run, **config: Any) -> Run:
    """The same run with other values in its config's sections."""
    sections = {name: getattr(run.config, name).model_copy(update=values) for name, values in config.items()}
    return Run(run.uri, run.config.model_copy(update=sections))


def finish(run: Run, number: int) -> None:
    # The stage asks for labels before the plan is made; here the plan lies there already.
    plan = run.artifact(round_folder(number, "plan.parquet"))
    hidden = run.store.path(plan.manifest_file)
    Path(hidden).rename(f"{hidden}.later")
    execute(pull_labels.STAGE, run, number)
    Path(f"{hidden}.later").rename(hidden)
    execute(score_rewards.STAGE, run, number)
    execute(compute_advantages.STAGE, run, number)


def client(run: Run) -> MlflowClient:
    return MlflowClient(tracking_uri=Tracker(run).place.uri)


def held(run: Run) -> dict[str, Trace]:
    """The run's traces by rollout; the ids of the runs that they belong to are checked."""
    store = client(run)
    experiment = store.get_experiment_by_name("grpo-rounds").experiment_id
    rounds = {
        found.info.run_id: found.data.tags["grpo_rounds.round"]
        for found in store.search_runs([experiment])
        if "grpo_rounds.round" in found.data.tags
    }
    found = store.search_traces(locations=[experiment], max_results=500)
    for trace in found:
        assert rounds[trace.info.trace_metadata["mlflow.sourceRun"]] == trace.info.trace_metadata["grpo_rounds.round"]
        assert len(trace.data.spans) == 1
    by_rollout = {trace.info.trace_metadata["grpo_rounds.rollout_id"]: trace for trace in found}
    assert len(by_rollout) == len(found)
    return by_rollout


def content(run: Run) -> dict[str, Any]:
    """All that MLflow holds of the run's traces."""
    return {rollout: (trace.info.to_dict(), trace.data.to_dict()) for rollout, trace in held(run).items()}


def say(run: Run, rollout: str, name: str, value: Any, who: str = "ann", **given: Any) -> str:
    """What a person does in MLflow's UI; returns the assessment's id."""
    kind = Expectation if given.pop("expectation", False) else Feedback
    trace = held(run)[rollout].info.trace_id
    source = AssessmentSource(source_type="HUMAN", source_id=who)
    made = kind(name=name, value=value, source=source, **given)
    return TracingClient(Tracker(run).place.uri).log_assessment(trace, made).assessment_id


def rewards(run: Run, number: int) -> dict[str, dict[str, Any]]:
    table = run.artifact(round_folder(number, "rewards")).read_table(REWARDS)
    return {row["rollout_id"]: row for row in table.to_pylist()}


# -- traces --


def test_traces_say_what_was_asked_answered_and_found(run: Run) -> None:
    found = held(run)
    assert len(found) == 8
    trace = found["0001/a/1"]
    manifests = [run.artifact(round_folder(1, name)).manifest() for name in ("labels", "plan.parquet", "rollouts")]
    finished = int(manifests[2].finished_at * 1000)
    began = min(int(manifest.finished_at * 1000) for manifest in manifests)
    assert (trace.info.request_time, trace.info.execution_duration) == (began, finished - began)
    assert (trace.info.request_preview, trace.info.response_preview) == ("a?", "\\boxed{42}")
    (span,) = trace.data.spans
    assert (span.inputs, span.outputs) == ({"prompt": "a?"}, {"completion": "\\boxed{42}"})
    said = {one.name: one for one in trace.info.assessments}
    values = {name: one.feedback.value for name, one in said.items()}
    row = run.artifact(round_folder(1, "advantages")).read_table(ADVANTAGES).to_pylist()[1]
    assert values.pop("advantage") == row["advantage"]
    assert values == {"verdict": "ok", "reward": 1.1, "component.correct": 1.0, "component.box": pytest.approx(0.1)}
    assert {one.source.source_type for one in said.values()} == {"CODE"}
    assert said["verdict"].rationale == "answer 42; gold 42"
    assert trace.info.tags["grpo_rounds.run"] == run.identity
    hostile = found["0001/b/1"]  # PostgreSQL takes no NUL
    assert hostile.info.response_preview == HOSTILE.replace("\0", "\ufffd")
    assert not any("\0" in (one.rationale or "") for one in hostile.info.assessments)


def test_a_repeated_sync_and_a_new_process_write_nothing_twice(run: Run) -> None:
    before = content(run)
    Tracker(run).sync()
    again = Tracker(open_run(run.uri))
    again.sync()
    child = again._record.children[1]
    child.set_tags({"grpo_rounds.synced": "", "grpo_rounds.uploaded.traces": ""})  # as if killed at the very end
    again.sync()
    assert content(run) == before


def test_a_kill_between_any_two_traces_loses_and_doubles_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = content(run)
    store = client(run)
    tracker = Tracker(run)
    assert tracker.run_id is not None
    child = tracker._record.children[1]
    experiment = store.get_experiment_by_name("grpo-rounds").experiment_id
    store.delete_traces(experiment, trace_ids=[trace.info.trace_id for trace in held(run).values()])
    child.set_tags({"grpo_rounds.synced": "", "grpo_rounds.uploaded.traces": ""})
    left = 0
    for name in ("start_trace", "log_spans"):
        real = getattr(TracingClient, name)

        def dies(self: Any, *args: Any, _real: Any = real) -> Any:
            nonlocal left
            made = _real(self, *args)
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return made

        monkeypatch.setattr(TracingClient, name, dies)
    for lives in (3, 5, 1):  # in the midst of the traces, at the last of them, and after their spans
        left = lives
        with pytest.raises(KeyboardInterrupt):
            Tracker(run).sync()
    assert Tracker(run).sync() is None
    assert content(run) == expected


def test_a_lost_store_gets_traces_and_peoples_words_back(run: Run) -> None:
    say(run, "0001/a/2", "verdict", True, rationale="41 is fine, too")
    say(run, "0001/a/2", "gold", "41", expectation=True)
    say(run, "0001/a/2", "tone", "kind")
    say(run, "0001/a/0", "verdict", "wrong", expectation=True)  # a comment, and no verdict
    finish(run, 2)
    Tracker(run).sync()
    labels = stored_labels(run, 2)
    before = content(run)
    Path(run.uri).with_name("mlflow.db").unlink()
    Tracker(run).sync()
    after = held(run)
    assert after.keys() == before.keys()
    finish(run, 3)
    assert stored_labels(run, 3) == labels


def test_a_round_made_anew_gets_its_traces_anew_and_keeps_what_people_spoke_of(run: Run, tmp_path: Path) -> None:
    say(run, "0001/a/0", "verdict", False)
    before = held(run)
    store_run(Path(run.uri), {1: {"a": ["41", *TEXTS[1]["a"][1:]], "b": ["8", *TEXTS[1]["b"][1:]]}}, name="demo")
    for stage in (score_rewards.STAGE, compute_advantages.STAGE):
        execute(stage, run, 1)
    assert Tracker(run).sync() is None
    store = client(run)
    experiment = store.get_experiment_by_name("grpo-rounds").experiment_id
    after = {trace.info.trace_id: trace.info for trace in store.search_traces(locations=[experiment], max_results=500)}
    assert len(after) == 9
    assert before["0001/b/0"].info.trace_id not in after
    kept = after.pop(before["0001/a/0"].info.trace_id)
    assert [one.source.source_id for one in kept.assessments if one.source.source_type == "HUMAN"] == ["ann"]
    texts = {info.client_request_id: info.response_preview for info in after.values()}
    assert (texts["0001/a/0"], texts["0001/b/0"], texts["0001/b/3"]) == ("41", "8", "9")
    finish(run, 2)
    assert stored_labels(run, 2) == []  # the rollout that it was about is no more


def test_a_trace_follows_the_checks_and_what_a_person_overrode_stays_overridden(run: Run) -> None:
    verdict = next(one for one in held(run)["0001/a/1"].info.assessments if one.name == "verdict")
    say(run, "0001/a/1", "verdict", "wrong", overrides=verdict.assessment_id)
    run = changed(run, reward={"correct": 3.0, "box_bonus": 0.0})
    for stage in (score_rewards.STAGE, compute_advantages.STAGE):
        execute(stage, run, 1)
    assert Tracker(run).sync() is None
    said = {(one.name, one.source.source_id): one for one in held(run)["0001/a/1"].info.assessments}
    assert said["reward", "grpo-rounds"].feedback.value == 3.0
    assert said["component.box", "grpo-rounds"].feedback.value == 0.0
    assert (said["verdict", "grpo-rounds"].valid, said["verdict", "ann"].valid) == (False, True)
    assert len(said) == 6


def test_no_traces_where_none_are_wanted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = changed(run, tracking={"traces": 0})
    finish(run, 2)
    monkeypatch.delattr(traces, "write_traces")
    assert Tracker(run).sync() is None
    assert {rollout[:4] for rollout in held(run)} == {"0001"}


# -- labels --


def test_what_people_said_is_a_table_of_the_next_round(run: Run) -> None:
    say(run, "0001/a/2", "verdict", "no")
    say(run, "0001/a/2", "verdict", "yes", rationale="41 is right", create_time_ms=5_000, last_update_time_ms=5_000)
    say(run, "0001/a/2", "verdict", "wrong", who="bob", create_time_ms=9_500, last_update_time_ms=9_500)
    say(run, "0001/b/0", "tier", "top", who="bob")
    first = say(run, "0001/b/1", "tone", 3.5)
    gone = say(run, "0001/b/2", "verdict", True)
    TracingClient(Tracker(run).place.uri).delete_assessment(held(run)["0001/b/2"].info.trace_id, gone)
    overridden = say(run, "0001/b/3", "verdict", True)
    say(run, "0001/b/3", "remark", "no", who="bob", overrides=overridden)
    finish(run, 2)
    found = [(label.rollout_id, label.kind, label.who, label.value) for label in stored_labels(run, 2)]
    assert found == [
        ("0001/a/2", "verdict", "ann", "wrong"),  # the later of her two
        ("0001/a/2", "verdict", "bob", "wrong"),
        ("0001/b/0", "tier", "bob", "top"),
        ("0001/b/1", "comment", "ann", "3.5"),
        ("0001/b/3", "comment", "bob", "no"),
    ]
    table = run.artifact(round_folder(2, "labels")).read_table(LABELS).to_pylist()
    assert table[1] | {"trace_id": "", "assessment_id": ""} == {
        "rollout_id": "0001/a/2",
        "prompt_id": "a",
        "round": 1,
        "kind": "verdict",
        "name": "verdict",
        "value": "wrong",
        "who": "bob",
        "at": "1970-01-01T00:00:09.500Z",
        "rationale": "",
        "trace_id": "",
        "assessment_id": "",
        "extracted": "41",
        "completion": "41",
        "reward": 0.0,
    }
    assert table[3]["assessment_id"] == first
    assert run.artifact(round_folder(2, "labels")).manifest().metrics == {
        "comments": 2.0,
        "tiers": 1.0,
        "verdicts": 2.0,
    }


def test_a_persons_verdict_and_gold_change_the_rewards_of_the_rounds_after(run: Run) -> None:
    before = rewards(run, 1)
    say(run, "0001/a/2", "verdict", "ok")
    say(run, "0001/b/0", "expected_answer", "7", who="bob", expectation=True)
    finish(run, 2)
    found = rewards(run, 2)
    # "41" is right by ann's word, also in a box; b's gold is 7 by bob's.
    assert [found[f"0002/a/{n}"]["reward"] for n in range(4)] == [1.0, pytest.approx(1.1), 0.0, 0.0]
    assert [found[f"0002/b/{n}"]["reward"] for n in range(4)] == [1.0, 0.0, pytest.approx(0.1), 0.0]
    assert [found[f"0002/{p}/0"]["gold"] for p in "ab"] == ["42", "7"]
    assert found["0002/a/0"]["detail"] == "said a person: ok by ann, the check: wrong"
    assert found["0002/b/1"]["detail"] == "said a person: gold by bob, before: 42"
    assert dict(found["0002/a/1"]["components"]) == {"correct": 1.0, "box": pytest.approx(0.1)}
    manifest = run.artifact(round_folder(2, "rewards")).manifest()
    assert {name: value for name, value in manifest.metrics.items() if name.startswith("people_")} == {
        "people_verdicts": 2.0, "people_golds": 4.0, "people_conflicts": 0.0
    }  # fmt: skip
    assert rewards(run, 1) == before

    page = round_report(run, 2).decode()
    people = page[page.index('id="people"') : page.index('id="groups"')]
    assert "<bdi>ann</bdi>" in people
    assert "expected_answer: <bdi>7</bdi>" in people
    assert people.count("<article") == 6  # two of a, all of b
    assert "said a person: ok by ann, the check: wrong" in people


@pytest.mark.parametrize("off", [{"verdicts": "ignore", "golds": "ignore"}, {"source": "off"}])
def test_what_the_config_ignores_changes_nothing(run: Run, off: dict[str, str]) -> None:
    run = changed(run, labels=off)
    say(run, "0001/a/2", "verdict", "ok")
    finish(run, 2)
    assert len(stored_labels(run, 2)) == ("source" not in off)
    found = rewards(run, 2)["0002/a/0"]
    assert (found["verdict"], found["detail"]) == ("wrong", "")
    assert "labels" not in run.artifact(round_folder(2, "rewards")).manifest().parts["inputs"]


def test_only_labels_that_can_matter_are_an_input(run: Run) -> None:
    say(run, "0001/a/2", "verdict", "ok")
    say(run, "0001/a/2", "tier", "top")
    say(run, "0001/b/2", "tone", "rude")
    for number in (2, 3):
        finish(run, number)

    def inputs(number: int, name: str) -> Any:
        return run.artifact(round_folder(number, name)).manifest().parts["inputs"]

    assert "labels" in inputs(2, "rewards")
    assert "labels" not in inputs(3, "rewards")  # it has no prompt that anyone spoke of
    assert "labels" not in inputs(2, "advantages")  # this estimator has no tiers


def test_peoples_tiers_move_boundaries(run: Run) -> None:
    say(run, "0001/b/2", "tier", "bottom")  # a wrong answer in a box, 0.1
    run = changed(run, advantage={"estimator": "tiers"})
    finish(run, 2)
    manifest = run.artifact(round_folder(2, "advantages")).manifest()
    # Five zeros, 0.1, 1 and 1.1: the top tier would begin at 0.1 (the middle of 5 and 6 of 8 is beyond two thirds).
    assert manifest.metrics["tier_2_from"] == np.nextafter(0.1, 1.0)
    assert "labels" in manifest.parts["inputs"]
    execute(compute_advantages.STAGE, changed(run, labels={"tiers": "ignore"}), 2)
    manifest = run.artifact(round_folder(2, "advantages")).manifest()
    assert manifest.metrics["tier_2_from"] == 0.1
    assert "labels" not in manifest.parts["inputs"]


def test_rescore_hears_people_too(run: Run, tmp_path: Path) -> None:
    say(run, "0001/a/2", "verdict", "ok")
    finish(run, 2)
    wish = Wish(overrides=("reward.correct=5.0",), rounds="2", out=str(tmp_path / "out"))
    make_branch(plan_branch(run.uri, wish))
    again = open_run(str(tmp_path / "out")).artifact(round_folder(2, "rewards"))
    assert again.read_table(REWARDS).to_pylist()[0]["reward"] == 5.0
    assert "labels" in again.manifest().parts["inputs"]


def test_mlflow_that_can_not_be_asked_stops_no_run_unless_it_must(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    say(run, "0001/a/2", "verdict", "ok")
    finish(run, 2)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    strict = changed(run, labels={"needed": True})
    with pytest.raises(UserError, match=r"^labels\.needed is set and MLflow can't be asked") as refused:
        execute(pull_labels.STAGE, strict, 3)
    assert "secret" not in str(refused.value)
    finish(run, 3)
    assert stored_labels(run, 3) == stored_labels(run, 2) != []
    assert run.artifact(round_folder(3, "labels")).manifest().metrics == {"mlflow_unreachable": 1.0, "verdicts": 1.0}
    assert "MLflow could not be asked when this round began" in round_report(run, 3).decode()


def test_older_traces_keep_the_labels_that_they_had(run: Run) -> None:
    run = changed(run, labels={"newest_traces": 8})
    said = say(run, "0001/a/2", "verdict", "ok")
    finish(run, 2)
    Tracker(run).sync()
    TracingClient(Tracker(run).place.uri).delete_assessment(held(run)["0001/a/2"].info.trace_id, said)
    say(run, "0002/a/2", "verdict", "ok")
    finish(run, 3)
    assert [label.rollout_id for label in stored_labels(run, 3)] == ["0001/a/2", "0002/a/2"]


def test_a_lost_table_is_made_again_without_what_was_said_later(run: Run) -> None:
    say(run, "0001/a/2", "verdict", "ok", create_time_ms=1000, last_update_time_ms=1000)
    finish(run, 2)
    before = digests(Path(run.uri))["rounds/0002/labels/manifest.json"]
    say(run, "0001/b/2", "verdict", "ok")
    for number in (2, 3):  # without a later round, and with one that knows more
        Path(run.uri, "rounds/0002/labels/labels.parquet").write_bytes(b"harmed")
        execute(pull_labels.STAGE, run, 2)
        assert digests(Path(run.uri))["rounds/0002/labels/manifest.json"]["files"] == before["files"]
        if number == 2:
            finish(run, 3)
            assert len(stored_labels(run, 3)) == 2


# -- the report --


def test_the_report_shows_texts_as_texts_and_is_the_same_every_time(run: Run) -> None:
    tracker = Tracker(run)
    assert tracker.run_id is not None
    tracker._record.children[1].set_tags({"grpo_rounds.synced": "", "grpo_rounds.uploaded.report": ""})
    assert tracker.sync() is None
    first = round_report(run, 1)
    page = first.decode()
    assert "<script" not in page
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; \\u202e &lt;/pre&gt; {{ 7 * 7 }} \\u0000 42" in page
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert round_report(open_run(run.uri), 1) == first
    assert "grpo-rounds audit" in page
    assert "--rollout 0001/b/1" in page
    assert "--prompt b" in page
    assert len(first) < 100_000
    store = client(run)
    child = next(
        found
        for found in store.search_runs([store.get_experiment_by_name("grpo-rounds").experiment_id])
        if found.data.tags.get("grpo_rounds.round") == "1"
    )
    assert Path(store.download_artifacts(child.info.run_id, "report.html")).read_bytes() == first
    assert child.data.tags["grpo_rounds.uploaded.report"] == report_digest(run, 1)


def test_the_report_says_what_changed_since_the_last_round_with_the_prompt(run: Run) -> None:
    for number in (2, 3):
        finish(run, number)
    page = round_report(run, 2).decode()
    changes = page[page.index('id="changes"') :]
    # a: rewards 1, 1.1, 0, 0 then 0, 0.1, 0, 0; b: 42 once and a box, then twice and a box.
    assert "mean reward 0.525 → 0.025, right 2 of 4 → 0 of 4" in changes
    assert "best answer then <bdi>42</bdi>, now <bdi>41</bdi>" in changes
    third = round_report(run, 3).decode()
    assert "since round 2" in third[third.index('id="changes"') :]
    assert report_digest(run, 3) != report_digest(run, 2)


# -- a whole run --


@pytest.mark.long
@pytest.mark.slow
def test_a_label_changes_the_next_round_and_a_killed_run_ends_with_the_same_bytes(command: Any, tmp_path: Path) -> None:
    small = ["--set", "data.additions.count=12"]  # six prompts are left to train on: every round has them all
    whole, killed = tmp_path / "whole/run", tmp_path / "killed/run"
    assert command("train", TINY, "--run-dir", whole, "--rounds", "1", *small).returncode == 0
    labelled = next(iter(held(open_run(str(whole))).values())).info.trace_metadata
    say(open_run(str(whole)), labelled["grpo_rounds.rollout_id"], "gold", "1000", expectation=True)
    shutil.copytree(whole.parent, killed.parent)
    more = ("--rounds", "2", *small)
    done = command("train", TINY, "--run-dir", whole, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    fault = "after-rename:rounds/0002/rewards/shard-00001.parquet"
    assert command("train", TINY, "--run-dir", killed, *more, fault=fault).returncode == -signal.SIGKILL
    say(open_run(str(killed)), labelled["grpo_rounds.rollout_id"], "gold", "7", expectation=True)  # too late for it
    assert command("resume", killed).returncode == 0
    assert digests(killed) == digests(whole)
    golds = {row["prompt_id"]: row["gold"] for row in rewards(open_run(str(whole)), 2).values()}
    assert golds.pop(labelled["grpo_rounds.prompt_id"]) == "1000"
    assert "1000" not in golds.values()
    assert all(found.condition.done for number in range(3) for found in examine(open_run(str(killed)), number))
