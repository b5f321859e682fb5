"""Prefect's own check of a flow's parameters takes every config that we take."""

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate
from support import ROOT

from flows.campaign import campaign
from flows.next_round import next_round
from grpo_core.config import load_config


@pytest.mark.parametrize("name", ["tiny", "quickstart", "tiers", "three-dimensions"])
@pytest.mark.parametrize("flow", [next_round, campaign])
def test_every_config_passes_as_it_is_written_out(flow, name):
    # As a deployment's defaults are checked. A key that is called as JSON schema calls something (required) fails here.
    values = {"config": load_config(ROOT / f"configs/{name}.yaml").model_dump(mode="json"), "run_dir": "/srv/run"}
    schema = parameter_schema(flow).model_dump_for_openapi()
    validate(values, schema, raise_on_error=True, preprocess=True, ignore_required=True)
