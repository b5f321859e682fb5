"""What a round's plan depends on: a source that joins later is no part of it."""

from pathlib import Path
from typing import Any

from stored_run import store_run

from grpo_core.config import RunConfig
from tasks import plan_round
from tasks.run import Run


def test_a_weighted_source_that_joins_leaves_the_plans_before_as_they_are(tmp_path: Path) -> None:
    stored = store_run(tmp_path / "run", {1: {"a": ["1"], "b": ["1"]}})

    def key(*sources: dict[str, Any]) -> str:
        data = {"prompts_per_round": 1, "sources": list(sources)}
        return plan_round.STAGE.fingerprint(Run(stored.uri, RunConfig.model_validate({"data": data})), 1).digest

    first, second = {"source": "s"}, {"source": "t", "from_round": 2}
    assert key(first) == key(first | {"weight": 3}) == key(first | {"weight": 3}, second | {"weight": 1})
    both = [key(first | {"weight": weight}, {"source": "t", "weight": 1}) for weight in (1, 3)]
    assert both[0] != both[1]
    three = (first | {"weight": 1}, {"source": "t", "weight": 1}, {"source": "u", "weight": 5, "from_round": 2})
    assert key(*three) == both[0]


def test_a_weight_that_is_no_part_of_the_key_changes_no_plan(tmp_path: Path) -> None:
    prompts = {f"{n:016x}": ["1"] for n in range(9)}
    plans = []
    for number, source in enumerate(({"source": "s"}, {"source": "s", "weight": 3})):
        run = store_run(tmp_path / f"run{number}", {1: prompts}, data={"prompts_per_round": 4, "sources": [source]})
        plan_round.execute(plan_round.STAGE, run, 1)
        plans.append(run.store.read_bytes("rounds/0001/plan.parquet"))
    assert plans[0] == plans[1]
