"""What a flow run does in addition to its work. With a server: `tests/flows/test_deployments.py`."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from prefect.client.schemas.objects import Flow, FlowRun
from prefect.context import FlowRunContext
from prefect.events.related import related_resources_from_run_context

from treadle.tasks.prefect.flow_runs import compact_events


class _Client:
    """Answers as a server does on which flow, deployment, queue and pool belong to the flow run."""

    def __getattr__(self, name: str) -> Any:
        async def read(of: Any) -> Flow:
            return Flow(id=uuid4(), name=name)

        return read


def test_task_run_events_contain_three_items_not_six() -> None:
    flow_run = FlowRun(
        flow_id=uuid4(), deployment_id=uuid4(), work_queue_id=uuid4(), work_pool_name="pool", tags=["treadle"]
    )
    with FlowRunContext.model_construct(flow_run=flow_run) as context:
        assert _roles() == ["deployment", "flow", "flow-run", "tag", "work-pool", "work-queue"]
        with compact_events():
            assert _roles() == ["flow", "flow-run", "tag"]
            assert FlowRunContext.get().flow_run.id == flow_run.id
        assert FlowRunContext.get() is context
    with compact_events():
        assert FlowRunContext.get() is None


def _roles() -> list[str]:
    related = asyncio.run(related_resources_from_run_context(_Client()))
    return sorted(resource.role for resource in related)
