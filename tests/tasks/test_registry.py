"""The registry of a real sqlite MLflow: each version once, the alias on the champion, and a policy that loads."""

import shutil
from pathlib import Path
from typing import Any

import mlflow
import pytest
from judged_run import judge, open_run_of, write_evaluation, write_policy
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from grpo_core.tiny import build_tiny
from tasks import promote_policy
from tasks.registry import sync_registry
from tasks.run import Run, round_folder
from tasks.stage import execute
from tasks.tracking import Tracker
from tasks.tracking_place import place_of
from tasks.tracking_store import connect

EVERY = {"evaluation": {"every": 1}}
WRITES = (
    *("create_registered_model", "create_logged_model", "log_model_artifacts", "finalize_logged_model"),
    *("create_model_version", "set_model_version_tag", "update_model_version", "set_registered_model_alias"),
)


@pytest.fixture
def place(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose runs share one store, which is MLflow's own for the test, too."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return tmp_path


def sync(run: Run) -> None:
    """What the tracker does for the registry, in a new connection and without the rest of its work."""
    record = connect(run, place_of(run.uri, run.config.tracking))
    for number in run.rounds_on_disk()[1:]:
        record.child(number, 0)
    sync_registry(record, run)


def held(place: Path, name: str = "demo") -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Versions in the order in which they were made, and the version of each alias."""
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    found = sorted(client.search_model_versions(f"name = '{name}'"), key=lambda version: int(version.version))
    told = [
        {
            "round": int(v.tags["grpo_rounds.round"]),
            "source": v.source,
            "tags": v.tags,
            "said": v.description,
            "by": v.run_id,
        }
        for v in found
    ]
    return told, {alias: told[int(v) - 1]["round"] for alias, v in client.get_registered_model(name).aliases.items()}


def test_every_evaluated_policy_is_a_version_with_its_numbers(place):
    run = open_run_of(place / "run", **EVERY)
    judge(run, {0: 4, 1: 6, 2: 12})
    assert Tracker(run).sync() is None
    versions, aliases = held(place)
    assert [version["round"] for version in versions] == [0, 1, 2]
    assert aliases == {"champion": 2}
    tags = versions[2]["tags"]
    decided = run.artifact(round_folder(2, "promotion")).manifest()
    assert tags["grpo_rounds.run"] == run.identity
    assert tags["grpo_rounds.policy"] == run.artifact(round_folder(2, "policy")).manifest().digest
    assert (tags["grpo_rounds.decision"], tags["grpo_rounds.champion_before"]) == ("promoted", "0")
    assert float(tags["promotion/difference"]) == pytest.approx(0.4)
    assert float(tags["promotion/low"]) == pytest.approx(decided.metrics["low"], rel=1e-5)
    assert (float(tags["eval/accuracy"]), tags["eval/pass_at_2"]) == (0.6, "0.5")
    assert versions[1]["said"].startswith("refused: accuracy 30.0% against 20.0% of round 0")
    assert versions[2]["source"] == f"{run.uri}/rounds/0002/policy"

    client = MlflowClient()
    child = client.get_run(versions[2]["by"])
    assert child.info.run_name == "round-0002"
    assert client.get_run(versions[0]["by"]).data.tags["grpo_rounds.champion"] == "models:/demo@champion"
    (logged,) = [
        model
        for model in client.search_logged_models([child.info.experiment_id])
        if model.model_id == tags["grpo_rounds.logged_model"]
    ]
    assert {metric.key: (metric.value, metric.step, metric.run_id) for metric in logged.metrics} == {
        "eval/accuracy": (0.6, 2, child.info.run_id),
        "eval/pass_at_2": (0.5, 2, child.info.run_id),
    }
    assert len(client.get_metric_history(child.info.run_id, "eval/accuracy")) == 1
    assert child.data.metrics["promotion/difference"] == pytest.approx(0.4)
    assert [f.path for f in client.list_artifacts(child.info.run_id, "promotion")] == ["promotion/decision.json"]


class Died(BaseException):
    """A process that ends in the middle of a request."""


def test_deaths_between_writes_make_no_second_version(place, monkeypatch):
    run = open_run_of(place / "run", **EVERY, promotion={"resamples": 500, "upload": True})
    judge(run, {0: 4})
    seen: list[str] = []
    for name in WRITES:
        real = getattr(MlflowClient, name)

        def dying(self, *args, _name=name, _real=real, **kwargs):
            done = _real(self, *args, **kwargs)
            call = f"{_name} {args}"
            if call not in seen:
                seen.append(call)
                raise Died
            return done

        monkeypatch.setattr(MlflowClient, name, dying)
    while True:
        before = len(seen)
        try:
            sync(run)
        except Died:
            assert len(seen) == before + 1
            continue
        break
    # A second upload before the version was made, and nothing else, is done twice.
    assert [call.partition(" ")[0] for call in seen] == [*WRITES[:5], "set_registered_model_alias"]
    versions, aliases = held(place)
    assert [version["round"] for version in versions] == [0]
    assert aliases == {"champion": 0}
    experiment = MlflowClient().get_experiment_by_name("grpo-rounds")
    assert len(MlflowClient().search_logged_models([experiment.experiment_id])) == 1
    seen.clear()
    sync(run)  # the first write would die
    assert seen == []


def test_an_alias_that_was_moved_or_lost_is_put_back(place):
    run = open_run_of(place / "run", **EVERY)
    judge(run, {0: 4, 1: 12})
    sync(run)
    client = MlflowClient()
    client.set_registered_model_alias("demo", "champion", "1")
    sync(run)
    assert held(place)[1] == {"champion": 1}
    client.delete_registered_model_alias("demo", "champion")
    sync(run)
    assert held(place)[1] == {"champion": 1}


def test_a_round_done_again_with_another_policy_supersedes_its_version(place):
    run = open_run_of(place / "run", **EVERY)
    judge(run, {0: 4, 1: 12})
    sync(run)
    write_policy(run, 1, "trained anew")
    sync(run)  # between the two: the new policy is not evaluated yet
    write_evaluation(run, 1, 6)
    execute(promote_policy.STAGE, run, 1)
    sync(run)
    versions, aliases = held(place)
    assert [version["round"] for version in versions] == [0, 1, 1]
    assert ["grpo_rounds.superseded" in version["tags"] for version in versions] == [False, True, False]
    assert [version["tags"]["grpo_rounds.decision"] for version in versions] == ["first", "promoted", "refused"]
    assert aliases == {"champion": 0}
    write_policy(run, 1)
    write_evaluation(run, 1, 12)
    execute(promote_policy.STAGE, run, 1)
    sync(run)
    versions, aliases = held(place)
    assert ["grpo_rounds.superseded" in version["tags"] for version in versions] == [False, False, True]
    assert aliases == {"champion": 1}


def test_another_evaluation_of_the_same_policy_changes_the_version_s_numbers(place):
    run = open_run_of(place / "run", **EVERY)
    judge(run, {0: 4, 1: 12})
    sync(run)
    write_evaluation(run, 1, 6)
    execute(promote_policy.STAGE, run, 1)
    sync(run)
    versions, aliases = held(place)
    assert [version["round"] for version in versions] == [0, 1]
    assert (versions[1]["tags"]["grpo_rounds.decision"], versions[1]["tags"]["eval/accuracy"]) == ("refused", "0.3")
    assert versions[1]["said"].startswith("refused: ")
    assert aliases == {"champion": 0}


def test_runs_that_share_a_model_don_t_fight_over_the_alias(place):
    shared = EVERY | {"promotion": {"resamples": 500, "model": "shared"}}
    first, second = (open_run_of(place / name, **shared, name=name) for name in ("one", "two"))
    judge(first, {0: 4, 1: 12})
    judge(second, {0: 20})
    for run in (first, second, first, second):
        sync(run)
    versions, aliases = held(place, "shared")
    assert [version["tags"]["grpo_rounds.run"] for version in versions] == [first.identity] * 2 + [second.identity]
    assert aliases == {"champion": 1, f"champion-{second.identity[:8]}": 0}
    tags = MlflowClient().get_run(versions[2]["by"]).data.tags
    assert tags["grpo_rounds.champion"] == f"models:/shared@champion-{second.identity[:8]}"


def test_an_alias_that_someone_else_set_is_left_alone(place):
    client = MlflowClient()
    client.create_registered_model("demo")
    theirs = client.create_model_version("demo", str(place), tags={"grpo_rounds.round": "77"})
    client.set_registered_model_alias("demo", "champion", theirs.version)
    run = open_run_of(place / "run", **EVERY)
    judge(run, {0: 4})
    sync(run)
    assert held(place)[1] == {"champion": 77, f"champion-{run.identity[:8]}": 0}


def test_a_version_whose_policy_was_removed_says_so(place):
    run = open_run_of(place / "run", **EVERY)
    judge(run, {0: 4, 1: 5, 2: 5})
    sync(run)
    run.artifact(round_folder(1, "policy")).retire()
    sync(run)
    weights = [version["tags"]["grpo_rounds.weights"] for version in held(place)[0]]
    assert weights == ["run folder", "removed by retention", "run folder"]


def test_a_round_that_mlflow_has_no_run_of_waits_for_the_next_whole_sync(place):
    run = open_run_of(place / "run", **EVERY)
    judge(run, {0: 4, 1: 12, 2: 13})
    record = connect(run, place_of(run.uri, run.config.tracking))
    record.child(2, 0)
    sync_registry(record, run)
    assert [version["round"] for version in held(place)[0]] == [0, 2]
    sync(run)
    versions, aliases = held(place)
    assert sorted(version["round"] for version in versions) == [0, 1, 2]
    assert aliases == {"champion": 1}


def test_turned_off_there_is_no_model(place):
    run = open_run_of(place / "run", **EVERY, promotion={"enabled": False})
    judge(run, {0: 4})
    sync(run)
    with pytest.raises(MlflowException, match="not found"):
        held(place)


def write_model(run: Run, number: int) -> None:
    """A tiny transformer as the policy of a round."""
    from grpo_core.artifacts import ArtifactWriter
    from grpo_core.fingerprint import Fingerprint
    from grpo_core.models import save_policy

    model, tokenizer = build_tiny(number)
    writer = ArtifactWriter(run.artifact(round_folder(number, "policy")), Fingerprint("policy", number, 1, {}, {}))
    writer.write_folder(lambda folder: save_policy(model, tokenizer, folder))
    writer.finish()


@pytest.mark.parametrize("upload", [False, True])
def test_the_champion_loads(place, upload):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = open_run_of(place / "run", **EVERY, promotion={"resamples": 500, "upload": upload})
    write_model(run, 0)
    judge(run, {0: 4})
    sync(run)
    if upload:
        shutil.rmtree(place / "run")
    folder = mlflow.artifacts.download_artifacts("models:/demo@champion")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    expected = build_tiny(0)[0]
    ids = tokenizer("1 + 1", return_tensors="pt").input_ids
    assert (model(ids).logits == expected(ids).logits).all()
