"""Deploy Treadle's flows to a Prefect server: a work pool with its queues, and the deployments.

`prefect.yaml` defines the same for `prefect deploy` in a checkout; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.core.runs.address import phase_name
from treadle.stages.entry import StageEntry
from treadle.stages.registry import stage_entries
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


FLOWS = ("flywheel", "work", "stage")
"""Functions of `treadle.flows.flywheel` that deployments run."""


def deployments() -> list[FlowDeployment]:
    """Return the deployments: whole flows, helpers, and one for each stage."""
    whole = [
        FlowDeployment("full", "All stages of a run; what is finished and unchanged is skipped.", "flywheel"),
        FlowDeployment("full-on-gpu", "The same, on a worker that polls the queue gpu.", "flywheel", GPU_QUEUE),
        FlowDeployment(
            "shards", "Help with a running sharded stage; flow runs with flow.workers above 0 request it.", "work"
        ),
    ]
    return whole + [_of_stage(entry) for entry in stage_entries().values()]


def _of_stage(entry: StageEntry) -> FlowDeployment:
    examples = {"model": "@base", "phase": f"@{phase_name(1)}"}
    qualifier = "".join(examples[one] for one in entry.qualifiers[:1])
    return FlowDeployment(
        entry.name,
        entry.description,
        queue=GPU_QUEUE if entry.on_gpu else "default",
        parameters={"instance": f"1/{entry.name}{qualifier}"},
    )


def deploy(folder: Path, pool: str = POOL) -> None:
    """Create or update the pool, its queues and the deployments on the server of PREFECT_API_URL.

    Schedules and parameters that users gave to the deployments stay.
    Flow runs work in `folder`: relative roots and configuration files are resolved against it.
    """
    from prefect.client.orchestration import get_client
    from prefect.flows import load_flow_from_entrypoint

    # Without such a step, Prefect copies the deployment's folder into that of each flow run.
    steps = [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}]
    wanted = deployments()
    with get_client(sync_client=True) as client:
        _make_pool(client, pool)
        for name, description in QUEUES.items():
            _make_queue(client, pool, name, description)
        made: dict[str, tuple[UUID, dict[str, Any]]] = {}
        for entrypoint in dict.fromkeys(item.entrypoint for item in wanted):
            flow: Flow[..., Any] = load_flow_from_entrypoint(entrypoint)
            made[entrypoint] = client.create_flow(flow), flow.parameters.model_dump_for_openapi()
        for item in wanted:
            flow_id, schema = made[item.entrypoint]
            _make_deployment(client, item, flow_id, _settings_of(item, schema, steps, pool))


def _settings_of(
    item: FlowDeployment, schema: dict[str, Any], steps: list[dict[str, Any]], pool: str
) -> dict[str, Any]:
    """Return the fields of a deployment that Treadle keeps up to date, by their names in Prefect's API.

    `parameters` is not among them: it is only set when the deployment is created.
    """
    return {
        "description": item.description,
        "entrypoint": item.entrypoint,
        "parameter_openapi_schema": schema,
        "enforce_parameter_schema": True,
        "pull_steps": steps,
        "tags": [TAG],
        "work_pool_name": pool,
        "work_queue_name": item.queue,
        "job_variables": {"env": dict(FLOW_RUN_ENV)},
    }


def _make_deployment(client: SyncPrefectClient, item: FlowDeployment, flow_id: UUID, settings: dict[str, Any]) -> None:
    """Create a deployment, or update what differs; its schedules, and parameters that were changed, stay.

    Prefect's way to update a deployment is to create it again, which deletes its schedules.
    """
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.exceptions import ObjectNotFound

    try:
        found = client.read_deployment_by_name(f"{item.flow}/{item.name}")
    except ObjectNotFound:
        # The server enforces a schema by default. Told to enforce it, client and server would first take a second each
        # to check that it is one, for every deployment.
        unchecked = {**settings, "enforce_parameter_schema": None}
        client.create_deployment(flow_id, item.name, parameters=item.parameters, **unchecked)
        return
    there = found.model_dump(mode="json", include=set(settings))
    if changed := {name: value for name, value in settings.items() if there[name] != value}:
        # The server finds a queue by both names.
        both = {name: settings[name] for name in ("work_pool_name", "work_queue_name")}
        client.update_deployment(found.id, DeploymentUpdate(**changed | both))


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
