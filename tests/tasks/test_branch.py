import pytest

from tasks.branch import Branch


def branch(**made: bool) -> Branch:
    return Branch("p", "id", 2, 3, **{"rewards": False, "policies": False, "evaluation": False} | made, differs={},
                  digests={}, created="")  # fmt: skip


@pytest.mark.parametrize(
    ("made", "own", "parents"),
    [
        (
            {},
            {"advantages", "gates", "policy", "trainer_state", "reference", "steps", "evaluation"},
            {"rewards", "rollouts"},
        ),
        ({"rewards": True}, {"rewards", "advantages", "gates"}, {"rollouts", "plan.parquet", "plan.manifest.json"}),
        ({"policies": True}, {"policy", "update_checkpoint", "advantages"}, {"gates", "rewards", "rollouts"}),
    ],
)
def test_what_comes_after_a_change_is_the_branchs_own(made: dict[str, bool], own: set[str], parents: set[str]) -> None:
    found = branch(**made)
    assert all(found.owns(f"rounds/0002/{name}") and found.owns(f"rounds/0003/{name}/manifest.json") for name in own)
    assert not any(found.owns(f"rounds/0002/{name}") for name in parents)
    assert not any(found.owns(f"rounds/0001/{name}") for name in own | parents)  # before its first round
    assert not found.owns("prompts/train.parquet")
    assert all(found.owns(path) for path in ("config.yaml", "rounds", "rounds/0002", ".lock", ""))


def test_which_stages_it_has() -> None:
    found = branch(policies=True, evaluation=True)
    stages = (
        "initial_policy",
        "score_rewards",
        "compute_advantages",
        "apply_gates",
        "update_policy",
        "evaluate_policy",
    )
    made = {(n, stage) for n in range(5) for stage in stages if found.makes(stage, n)}
    assert made == {(2, "compute_advantages"), (2, "update_policy"), (3, "compute_advantages"), (3, "update_policy"),
                    (3, "evaluate_policy")}  # fmt: skip
