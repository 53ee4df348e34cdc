"""Post artifacts to the Prefect UI without emitting events.

Prefect's own functions emit an event whenever an artifact is created or updated. An event takes about 8 KB of the
server's database with its indexes, so an hour of progress updates would take ten megabytes. Nothing reads these events,
so this module sends the same requests without them.
"""

from __future__ import annotations

import re
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext, TaskRunContext


def update_progress(artifact: UUID, percent: float, description: str) -> None:
    """Update a progress bar."""
    update = ArtifactUpdate(data=percent, description=description)
    with get_client(sync_client=True) as client:
        client.request(
            "PATCH",
            "/artifacts/{id}",
            json=update.model_dump(mode="json", exclude_unset=True),
            path_params={"id": artifact},
        )


def create_artifact(kind: str, key: str, data: str | float, description: str) -> UUID:
    """Show an artifact (`progress`, `markdown` or `table`) for the current task run; return its id.

    `data`: per cent, the text, or the rows as JSON.
    """
    task, flow = TaskRunContext.get(), FlowRunContext.get()
    made = ArtifactCreate(
        type=kind,
        key=key,
        data=data,
        description=description,
        task_run_id=task.task_run.id if task else None,
        flow_run_id=flow.flow_run.id if flow and flow.flow_run else None,
    )
    with get_client(sync_client=True) as client:
        response = client.request("POST", "/artifacts/", json=made.model_dump(mode="json", exclude_unset=True))
    return UUID(response.json()["id"])


def artifact_key(*parts: str) -> str:
    """Return the key of an artifact in the UI: letters, digits and dashes."""
    return re.sub(r"[^a-z0-9-]+", "-", "-".join(parts).lower()).strip("-")
