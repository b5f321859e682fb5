"""What a branch's report says of its updates."""

from pathlib import Path

import pytest
from judged_run import write_policy
from stored_run import store_run

from grpo_core.artifacts import ArtifactWriter
from grpo_core.fingerprint import Fingerprint
from grpo_core.schemas import ADVANTAGES, REWARDS, ROLLOUTS
from tasks.branch import BRANCH, Branch
from tasks.rescore import compare
from tasks.run import Run, round_folder


@pytest.mark.parametrize(("generated_by", "off_policy"), [(1, False), (0, True)])
def test_off_policy_is_what_another_policy_generated(tmp_path: Path, generated_by: int, off_policy: bool) -> None:
    """Round 2 of the run took the policy of the round before, or went back to round 0's."""
    run = store_run(tmp_path / "run", {2: {"a": ["42"]}})
    for number in range(3):
        write_policy(run, number)
    policy = run.artifact(round_folder(generated_by, "policy")).manifest()
    assert policy is not None
    artifact = run.artifact(round_folder(2, "rollouts"))
    rollouts = artifact.read_table(ROLLOUTS)
    writer = ArtifactWriter(artifact, Fingerprint("generate_rollouts", 2, 1, {}, {"policy": policy.digest}))
    writer.write_table("shard-00000.parquet", rollouts)
    writer.finish()
    made = Branch(run.uri, run.identity, 1, 2, rewards=True, policies=True, evaluation=False, differs={}, digests={},
                  created="")  # fmt: skip
    place = tmp_path / "branch"
    place.mkdir()
    (place / BRANCH).write_bytes(made.to_bytes(str(place)))
    branch = Run(str(place), run.config)
    for number in (1, 2):
        write_policy(branch, number)  # the bytes of the run's own
    for name, schema in (("rewards", REWARDS), ("advantages", ADVANTAGES)):
        writer = ArtifactWriter(branch.artifact(round_folder(2, name)), Fingerprint(name, 2, 1, {}, {}))
        writer.write_table("shard-00000.parquet", schema.empty_table())
        writer.finish()
    change = compare(run, branch, 2, 1)
    assert change.update is not None
    assert change.update.off_policy is off_policy
