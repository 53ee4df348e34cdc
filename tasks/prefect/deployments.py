"""Deploy Treadle's flows to a Prefect server: a work pool with its queues, and the deployments.

`prefect.yaml` defines the same for `prefect deploy` in a checkout; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.tasks.prefect.settings import FLOW_RUN_ENV, TAG

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.flows import Flow

POOL = "local-process"
GPU_QUEUE = "gpu"
QUEUES = {
    "default": "Whole flows, and stages that need no device.",
    GPU_QUEUE: "Stages that train or serve a model; let workers on machines with a GPU take these.",
}


@dataclass(frozen=True, slots=True)
class FlowDeployment:
    """One deployment of a flow."""

    name: str
    description: str
    flow: str = "stage"
    queue: str = "default"
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def entrypoint(self) -> str:
        """Import path of the flow: flow runs need the installed package, not a checkout."""
        return f"treadle.flows.flywheel.{self.flow}"


_STAGES = {
    "questions": "Read, check and deduplicate the questions.",
    "index": "Build the search index on the machine of this worker; rollouts there find it.",
    "pools": "Make pools of trajectories from the training questions, repaired and condensed over rounds.",
    "sft_rows": "Apply the quality gate to trajectories and write the fine-tuning rows.",
    "sft": "Fine-tune a model on the rows; needs a worker with the environment of `sft.engine`.",
    "rollouts": "Sample rollouts over the questions; set the instance, such as 1/rollouts@base or 1/rollouts@phase-2.",
    "scores": "Score rollouts; set the instance, such as 1/scores@base or 1/scores@phase-2.",
    "selection": "Select the questions that a phase trains on; set its instance, such as 1/selection@phase-2.",
    "rl": "Train a policy in a phase, such as 1/rl@phase-2; needs a worker with the environment of `rl.engine`.",
    "report": "Build the report of all scores.",
}
_ON_GPU = ("pools", "sft", "rollouts", "rl")
_QUALIFIERS = {"rollouts": "@base", "scores": "@base", "selection": "@phase-1", "rl": "@phase-1"}
"""Qualifiers of the default instances."""

DEPLOYMENTS = (
    FlowDeployment("full", "All stages of a run; what is finished and unchanged is skipped.", "flywheel"),
    FlowDeployment("full-on-gpu", "The same, on a worker that polls the queue gpu.", "flywheel", GPU_QUEUE),
    FlowDeployment(
        "shards", "Help with a running sharded stage; flow runs with flow.workers above 0 request it.", "work"
    ),
    *(
        FlowDeployment(
            name,
            description,
            queue=GPU_QUEUE if name in _ON_GPU else "default",
            parameters={"instance": f"1/{name}{_QUALIFIERS.get(name, '')}"},
        )
        for name, description in _STAGES.items()
    ),
)


def deploy(folder: Path, pool: str = POOL) -> None:
    """Create or update the pool, its queues and the deployments on the server of PREFECT_API_URL.

    Flow runs work in `folder`: relative roots and configuration files are resolved against it.
    """
    from prefect.client.orchestration import get_client
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema

    # Without such a step, Prefect copies the deployment's folder into that of each flow run.
    steps = [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}]
    with get_client(sync_client=True) as client:
        _make_pool(client, pool)
        for name, description in QUEUES.items():
            _make_queue(client, pool, name, description)
        made: dict[str, tuple[UUID, dict[str, Any]]] = {}
        for entrypoint in dict.fromkeys(item.entrypoint for item in DEPLOYMENTS):
            flow: Flow[..., Any] = load_flow_from_entrypoint(entrypoint)
            made[entrypoint] = client.create_flow(flow), parameter_schema(flow).model_dump_for_openapi()
        for item in DEPLOYMENTS:
            flow_id, schema = made[item.entrypoint]
            client.create_deployment(
                flow_id,
                item.name,
                description=item.description,
                entrypoint=item.entrypoint,
                parameters=item.parameters,
                parameter_openapi_schema=schema,
                enforce_parameter_schema=True,
                pull_steps=steps,
                tags=[TAG],
                work_pool_name=pool,
                work_queue_name=item.queue,
                job_variables={"env": dict(FLOW_RUN_ENV)},
            )


def _make_pool(client: SyncPrefectClient, name: str) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    from treadle.core.errors import ConfigError

    try:
        found = client.read_work_pool(name)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=name, type="process", description="Flow runs of Treadle."))
        return
    if found.type != "process":
        raise ConfigError(
            f"work pool {name!r} is of type {found.type}, and Treadle's flow runs are processes; "
            "name another one with --pool"
        )


def _make_queue(client: SyncPrefectClient, pool: str, name: str, description: str) -> None:
    from prefect.exceptions import ObjectNotFound

    try:
        queue = client.read_work_queue_by_name(name, work_pool_name=pool)
    except ObjectNotFound:
        client.create_work_queue(name, description=description, work_pool_name=pool)
        return
    if not queue.description:
        client.update_work_queue(queue.id, description=description)
