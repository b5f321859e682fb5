import pytest

from grpo_core.artifacts import ArtifactWriter
from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from grpo_core.fingerprint import Fingerprint
from tasks.retention import apply_retention, best_round
from tasks.run import Run, create_or_open, round_folder


def finish(run: Run, number: int, kind: str, **metrics: float) -> None:
    policy = run.artifact(round_folder(number, "policy")).manifest()
    inputs = {"policy": policy.digest} if kind == "evaluation" and policy else {}
    fingerprint = Fingerprint(stage=kind, round=number, version=1, config={}, inputs=inputs)
    writer = ArtifactWriter(run.artifact(round_folder(number, kind)), fingerprint)
    writer.write_folder(lambda folder: (folder / "model.safetensors").write_bytes(bytes([number])) and None)
    writer.finish(metrics)


@pytest.fixture
def run(tmp_path) -> Run:
    """Six rounds with their policies and states; round 2 did best on the held-out prompts."""
    run, _ = create_or_open(str(tmp_path / "run"), RunConfig())
    for number in range(6):
        finish(run, number, "policy")
        if number:
            finish(run, number, "trainer_state")
    for number, accuracy in ((0, 0.1), (2, 0.9), (4, 0.5)):
        finish(run, number, "evaluation", accuracy=accuracy)
    return run


def kept(run: Run, kind: str) -> list[int]:
    found = [n for n in run.rounds_on_disk() if run.artifact(round_folder(n, kind)).manifest()]
    return [n for n in found if not run.artifact(round_folder(n, kind)).is_retired]


def test_the_first_the_best_and_the_newest_stay(run):
    apply_retention(run, 5)
    assert kept(run, "policy") == [0, 2, 4, 5]
    assert kept(run, "trainer_state") == [4, 5]
    assert run.artifact(round_folder(1, "policy")).condition().done  # still known by its digests
    with pytest.raises(UserError, match=r"retention\.policies"), run.local_policy(1):
        pass


def test_an_evaluation_of_another_policy_makes_none_the_best(run):
    artifact = run.artifact(round_folder(2, "policy"))
    writer = ArtifactWriter(artifact, Fingerprint(stage="policy", round=2, version=1, config={}, inputs={"x": "other"}))
    writer.write_folder(lambda folder: (folder / "model.safetensors").write_bytes(b"trained anew") and None)
    writer.finish({})
    assert best_round(run, range(6)) == 4


def test_a_second_time_retires_nothing_more(run):
    assert apply_retention(run, 5)
    assert apply_retention(run, 5) == []


def test_a_round_done_again_keeps_its_policy_although_later_ones_lie_there(run):
    # Round 1 was just made anew: what lies behind it comes from before and counts for nothing.
    apply_retention(run, 1)
    assert kept(run, "policy") == [0, 1, 2, 3, 4, 5]
    assert 1 in kept(run, "trainer_state")
    assert best_round(run, [0, 1]) == 0
