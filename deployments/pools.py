"""Work pools whose jobs ask for GPUs: Prefect's own job templates of each kind, with one variable more.

A round's stages run one after another in one process, so the GPUs are asked for once, for the flow run; and by the
deployment, because it says which stages there will be.
"""

import copy
from collections.abc import Mapping
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectNotFound

from grpo_core.errors import UserError

KINDS = ("process", "docker", "kubernetes")
_GPU_RESOURCE = "nvidia.com/gpu"


def ensure_pool(name: str, kind: str | None) -> str:
    """Make the work pool when there is none, with our job template; one that exists keeps its own. Returns its kind.

    Raises:
        UserError: it exists and is of another kind, or the kind has no template here.
    """
    with get_client(sync_client=True) as client:
        try:
            found = client.read_work_pool(name)
        except ObjectNotFound:
            kind = kind or KINDS[0]
            template = job_template(kind, client.read_worker_metadata())
            client.create_work_pool(WorkPoolCreate(name=name, type=kind, base_job_template=template))
            return kind
    if kind not in (None, found.type):
        raise UserError(f"--pool '{name}' is a {found.type} pool already; leave --pool-type out or give another name.")
    if found.type not in KINDS:
        raise UserError(f"--pool '{name}' is a {found.type} pool; give one of {', '.join(KINDS)}.")
    return found.type


def job_template(kind: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The base job template of a kind of pool.

    Args:
        metadata: what the server tells of each kind of worker, by package and kind.
    """
    if kind not in KINDS:
        raise UserError(f"--pool-type '{kind}' has no job template here; give one of {', '.join(KINDS)}.")
    offered = {name: worker for package in metadata.values() for name, worker in package.items()}
    template: dict[str, Any] = copy.deepcopy(offered[kind]["default_base_job_configuration"])
    job, properties = template["job_configuration"], template["variables"]["properties"]
    if kind == "docker":
        job["container_create_kwargs"] = {"device_requests": "{{ gpus }}", "shm_size": "{{ shm_size }}"}
        properties["gpus"] = {
            "title": "GPUs",
            "description": "Docker's device requests; [] for none.",
            "type": "array",
            "items": {"type": "object"},
            "default": _device_requests(1),
        }
        properties["shm_size"] = {
            "title": "Shared memory",
            "description": "Size of /dev/shm, by which torch's processes talk.",
            "type": "string",
            "default": "8g",
        }
    elif kind == "kubernetes":
        (container,) = job["job_manifest"]["spec"]["template"]["spec"]["containers"]
        container["resources"]["limits"][_GPU_RESOURCE] = "{{ gpus }}"
        properties["gpus"] = {
            "title": "GPUs",
            "description": f"How many of {_GPU_RESOURCE} the pod asks for; 0 for none.",
            "type": "integer",
            "minimum": 0,
            "default": 1,
        }
    return template


def job_variables(kind: str, gpus: int, env: Mapping[str, str], working_dir: str) -> dict[str, Any]:
    """What one deployment sets in the job template of its pool: GPUs, environment and, for processes, the folder.

    A process takes what its machine has; without GPUs it is made not to see them.
    """
    if kind == "process":
        return {"env": dict(env) | ({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}), "working_dir": working_dir}
    return {"env": dict(env), "gpus": _device_requests(gpus) if kind == "docker" else gpus}


def _device_requests(gpus: int) -> list[dict[str, Any]]:
    return [{"Driver": "nvidia", "Count": gpus, "Capabilities": [["gpu"]]}] if gpus else []
