"""Mark task runs as crashed if the process of their flow run has ended, which Prefect does not do."""

from __future__ import annotations

import logging
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, State, StateType
from prefect.context import FlowRunContext
from prefect.states import Crashed

logger = logging.getLogger(__name__)
_NON_TERMINAL = [kind for kind in StateType if kind not in TERMINAL_STATES]


def close_task_runs(label: str) -> None:
    """Mark unfinished task runs Crashed if their flow run has this label and has ended.

    Also marks those of an earlier process of the current flow run, so call it before any task run starts. When a flow
    run whose process was killed is marked Crashed, its task runs keep their state otherwise.
    """
    ended = FlowRunFilterState(type=FlowRunFilterStateType(any_=sorted(TERMINAL_STATES)))
    try:
        with get_client(sync_client=True) as client:
            _close(client, FlowRunFilter(tags=FlowRunFilterTags(all_=[label]), state=ended))
            context = FlowRunContext.get()
            if context is not None and context.flow_run is not None:
                _close(client, FlowRunFilter(id=FlowRunFilterId(any_=[context.flow_run.id])))
    except Exception as error:  # noqa: BLE001 - the run continues, whatever Prefect's client raises
        logger.warning("task runs of earlier flow runs could not be marked: %s", error)


def _close(client: SyncPrefectClient, of: FlowRunFilter) -> None:
    under_way = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_NON_TERMINAL)))
    for task_run in client.read_task_runs(flow_run_filter=of, task_run_filter=under_way):
        said: State[Any] = Crashed(message="Its flow run ended without reporting its state.")
        client.set_task_run_state(task_run.id, said, force=True)
