"""What a real Prefect server takes of ours: forms that refuse, pools, the automation, prefect.yaml, serve."""

import signal
import subprocess

import httpx
import pytest
import yaml
from bench import SMALL, Bench, until
from prefect.client.orchestration import get_client
from support import ROOT, TINY

from deployments.automations import NAME, ensure_automation, zombies
from deployments.pools import KINDS, ensure_pool
from deployments.registry import Slots, build
from flows.leases import lease_warning
from grpo_core.config import RunConfig, load_config
from grpo_core.errors import UserError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "bad",
    [
        {"config": {"update": {"learning_rate": "quick"}}},
        {"config": {"generation": {"group_sise": 8}}},
        {"config": {"rounds": 0}},
        {"run_dir": "runs/relative"},
    ],
)
def test_the_server_refuses_bad_parameters_before_a_run_exists(bench: Bench, bad: dict[str, object]) -> None:
    deployment = bench.register(bench.home / "form")["next-round"]
    with pytest.raises(httpx.HTTPStatusError) as refused:
        bench.start(deployment, **bad)
    assert refused.value.response.status_code in (409, 422)
    assert bench.flow_runs(deployment) == []


def test_the_form_has_every_section_with_its_descriptions(bench: Bench) -> None:
    deployment = bench.get(f"/deployments/{bench.register(bench.home / 'form')['next-round']}")
    schema = deployment["parameter_openapi_schema"]
    assert deployment["enforce_parameter_schema"]
    assert set(schema["required"]) == {"config", "run_dir"}
    config = schema["definitions"]["RunConfig"]["properties"]
    assert set(config) == set(RunConfig.model_fields)
    assert "pattern" in schema["properties"]["run_dir"]
    rate = schema["definitions"]["UpdateConfig"]["properties"]["learning_rate"]
    assert rate["description"]


def test_deployments_have_the_limits_that_keep_rounds_apart(bench: Bench) -> None:
    made = bench.register(
        bench.home / "limits", ("next-round", "campaign", "evaluate", "rescore", "audit"), interval=60
    )
    found = {flow: bench.get(f"/deployments/{identity}") for flow, identity in made.items()}
    limits = {flow: (d["global_concurrency_limit"] or {}).get("limit") for flow, d in found.items()}
    assert limits == {"next-round": 1, "campaign": 1, "evaluate": 1, "rescore": None, "audit": None}
    strategies = {flow: (d["concurrency_options"] or {}).get("collision_strategy") for flow, d in found.items()}
    assert (strategies["next-round"], strategies["campaign"]) == ("CANCEL_NEW", "ENQUEUE")
    assert {flow for flow, d in found.items() if d["schedules"]} == {"next-round"}
    blind = {flow for flow, d in found.items() if d["job_variables"]["env"].get("CUDA_VISIBLE_DEVICES") == ""}
    assert blind == {"rescore", "audit"}
    bench.end_schedule(made["next-round"])


@pytest.mark.parametrize(
    ("cron", "interval", "zone"), [("0 3 * *", None, None), ("0 3 * * *", 5.0, None), (None, None, "UTC")]
)
def test_a_schedule_that_is_none_is_one_sentence(cron: str | None, interval: float | None, zone: str | None) -> None:
    with pytest.raises(UserError, match="--cron"):
        Slots(cron, interval, zone).schedule()


def test_pools_of_each_kind_ask_for_gpus(bench: Bench) -> None:
    for kind in KINDS:
        assert [ensure_pool(f"gpus-{kind}", kind) for _ in range(2)] == [kind, kind]
    with get_client(sync_client=True) as client:
        templates = {kind: client.read_work_pool(f"gpus-{kind}").base_job_template for kind in KINDS}
    container = templates["kubernetes"]["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]["containers"][
        0
    ]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "{{ gpus }}"
    assert templates["docker"]["job_configuration"]["container_create_kwargs"]["device_requests"] == "{{ gpus }}"
    with pytest.raises(UserError, match="process pool"):
        ensure_pool("gpus-process", "docker")
    config = load_config(TINY)
    for kind, one, none in (
        ("kubernetes", 2, 0),
        ("docker", [{"Driver": "nvidia", "Count": 2, "Capabilities": [["gpu"]]}], []),
    ):
        made = build(config, "/run", f"on-{kind}", Slots(), {"name": f"gpus-{kind}", "type": kind}, gpus=2)
        asked = {deployment.flow_name: deployment.job_variables["gpus"] for deployment in made}
        assert asked == {"next-round": one, "campaign": one, "evaluate": one, "rescore": none, "audit": none}
        assert made[0].apply()  # the server holds job variables against the pool's template


def test_the_automation_is_there_once(bench: Bench) -> None:
    for seconds in (60, 90):
        ensure_automation(zombies(seconds))
    with get_client(sync_client=True) as client:
        (found,) = client.read_automations_by_name(NAME)
    assert found.enabled
    assert found.trigger.within.total_seconds() == 90


def test_leases_of_this_server_outlive_it(bench: Bench) -> None:
    assert lease_warning() is None


def test_prefect_deploy_takes_prefect_yaml(bench: Bench) -> None:
    ensure_pool("grpo-rounds", "process")
    words = ["--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"]
    done = subprocess.run(
        [*bench.warm, "prefect", *words],
        cwd=ROOT, env=bench.everything | {"GRPO_ROUNDS_RUN": "/srv/runs/quickstart"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for flow in ("next-round", "campaign", "evaluate", "rescore", "audit"):
        deployment = bench.get(f"/deployments/name/{flow}/quickstart")
        assert deployment["parameters"]["run_dir"] == "/srv/runs/quickstart"
        assert deployment["enforce_parameter_schema"]
    slots = bench.get("/deployments/name/next-round/quickstart")
    assert slots["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert slots["global_concurrency_limit"]["limit"] == 1


def test_prefect_yaml_holds_the_quickstart_as_it_is() -> None:
    told = yaml.safe_load((ROOT / "deployments/prefect.yaml").read_text())
    assert RunConfig.model_validate(told["definitions"]["config"]) == load_config(ROOT / "configs/quickstart.yaml")


@pytest.mark.long
def test_serve_registers_and_runs_by_itself(bench: Bench) -> None:
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    words = [
        "serve",
        TINY,
        "--run-dir",
        bench.home / "served",
        "--interval",
        5,
        "--rounds",
        1,
        "--name",
        "served",
        *sets,
    ]
    with (bench.home / "serve.log").open("w") as log:
        serving = subprocess.Popen(
            [*bench.warm, *map(str, words)], cwd=bench.home, env=bench.everything,
            stdout=log, stderr=log,
        )  # fmt: skip

    def told() -> str:
        return (bench.home / "serve.log").read_text()

    until(lambda: bench.api.get("/deployments/name/next-round/served").is_success, told)
    identity = bench.get("/deployments/name/next-round/served")["id"]
    waiting = {"Scheduled", "Late"}
    until(lambda: {r["state_name"] for r in bench.flow_runs(identity)} - waiting, told)
    bench.end_schedule(identity)  # one slot is enough
    until(lambda: "Completed" in [r["state_name"] for r in bench.flow_runs(identity)], told)
    serving.send_signal(signal.SIGTERM)
    serving.wait(timeout=60)
    assert (bench.home / "served/rounds/0001/policy/manifest.json").exists()
    refused = bench.grpo_rounds("serve", TINY, "--run-dir", bench.home / "another", "--name", "served")
    assert refused.returncode == 2
    assert "give this one a --name" in refused.stderr
