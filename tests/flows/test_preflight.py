"""What is found out before a run begins, or goes on with another config."""

from pathlib import Path

import pytest
from stored_run import store_run

from flows.preflight import check_config
from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from tasks.run import round_folder


def test_a_source_that_joins_a_run_is_looked_at_and_those_that_it_has_are_not(tmp_path: Path) -> None:
    here = {"source": "additions", "name": "s"}
    gone = {"source": str(tmp_path / "gone.jsonl"), "name": "t"}
    run = store_run(tmp_path / "run", {1: {"a": ["1"]}}, data={"sources": [gone]}, model={"name": "tiny"})
    run.store.write_bytes(round_folder(1, "plan.manifest.json"), b"{}")

    def check(*sources: dict[str, str]) -> None:
        data = {"sources": list(sources)}
        check_config(RunConfig.model_validate({"data": data, "model": {"name": "tiny"}}), run.uri)

    check(gone)
    check(gone, here)
    with pytest.raises(UserError, match=r"data\.sources\.1\.source .*nowhere\.jsonl"):
        check(gone, here | {"source": "nowhere.jsonl"})
