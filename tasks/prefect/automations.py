"""Install automations on the Prefect server that detect dead flow runs and send notifications.

Prefect does not mark a flow run Crashed if its process ends together with its worker, or if it was started from a
command line: it stays Running forever, or Submitting if it had not started. The first automation detects missing
heartbeats, the second detects flow runs that never start, the third sends a message about failed and crashed flow runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from treadle.core.errors import ConfigError
from treadle.tasks.prefect.settings import HEARTBEAT_TIMEOUT_S, START_TIMEOUT_S, TAG

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.events.schemas.automations import Automation, AutomationCore

SILENT = "treadle: flow runs that have gone silent"
STUCK = "treadle: flow runs that never start"
FAILED = "treadle: notify of failed flow runs"
_HEARTBEAT = "prefect.flow-run.heartbeat"
_NO_HEARTBEAT_STATES = ("Completed", "Failed", "Cancelled", "Crashed", "TimedOut", "Suspended", "AwaitingRetry")
"""States in which no heartbeat is expected."""
_STARTING_STATES = ("Pending", "Submitting")
"""States of a flow run whose process is being started."""
_WAITING = ("Scheduled", "Late", "AwaitingConcurrencySlot", "Paused", "Cancelling")
"""Further states before a process is started."""
_BODY = """{{ flow_run.name }} of flow {{ flow.name }} is {{ flow_run.state.name }}: {{ flow_run.state.message }}
{{ flow_run|ui_url }}"""


def install_automations(block: str | None = None) -> list[str]:
    """Install or update the automations; return one line about each.

    `block` names a notification block of the server, as in `slack-webhook/my-hook`. Raises ConfigError if it does not
    exist.
    """
    _install(_silent())
    _install(_stuck())
    lines = [f"a flow run without a heartbeat for {HEARTBEAT_TIMEOUT_S:g} s becomes Crashed"]
    if block is not None:
        _install(_failed(_block(block)))
        lines.append(f"notifications of failed and crashed flow runs go to {block}")
    elif _find(FAILED) is None:
        lines.append("no notification of failed flow runs; --notify-block names a notification block for that")
    return lines


def _treadle_tag() -> dict[str, Any]:
    return {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}


def _silent() -> AutomationCore:
    return _crashing(
        SILENT,
        "Marks flow runs as Crashed if their process ended without reporting.",
        f"No heartbeat for {HEARTBEAT_TIMEOUT_S:g} s: the process is gone. "
        "Finished work is kept; run it again to continue.",
        after={_HEARTBEAT},
        expected_states=_NO_HEARTBEAT_STATES,
        within_s=HEARTBEAT_TIMEOUT_S,
    )


def _stuck() -> AutomationCore:
    return _crashing(
        STUCK,
        "Marks flow runs as Crashed if a worker took them and they never started.",
        f"Not started {START_TIMEOUT_S:g} s after a worker took it: the worker is gone. Run it again.",
        after={f"prefect.flow-run.{name}" for name in _STARTING_STATES},
        expected_states=(*_NO_HEARTBEAT_STATES, *_WAITING, "Running"),
        within_s=START_TIMEOUT_S,
    )


def _crashing(
    name: str, description: str, message: str, *, after: set[str], expected_states: Iterable[str], within_s: float
) -> AutomationCore:
    """Return an automation that marks a flow run as Crashed if it falls silent after an event named in `after`.

    It does so if neither a heartbeat nor one of `expected_states` follows that event within `within_s` seconds.
    """
    from prefect.automations import AutomationCore, ChangeFlowRunState, EventTrigger, Posture
    from prefect.client.schemas.objects import StateType

    return AutomationCore(
        name=name,
        description=description,
        trigger=EventTrigger(
            after=after,
            expect={_HEARTBEAT, *(f"prefect.flow-run.{state}" for state in expected_states)},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            match_related=_treadle_tag(),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=within_s),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message=message)],
    )


def _failed(block_id: UUID) -> AutomationCore:
    from prefect.automations import AutomationCore, EventTrigger, Posture, SendNotification

    return AutomationCore(
        name=FAILED,
        description="Sends a message for each flow run that failed or crashed.",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut"},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            match_related=_treadle_tag(),
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[
            SendNotification(
                block_document_id=block_id, subject="Treadle: {{ flow_run.name }} {{ flow_run.state.name }}", body=_BODY
            )
        ],
    )


def _install(automation: AutomationCore) -> None:
    """Create the automation, or update it if it differs.

    An unchanged automation is left alone, because an update resets which flow runs it is waiting for.
    """
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        found = _find(automation.name)
        if found is None:
            client.create_automation(automation)
        elif _definition(found) != _definition(automation):
            client.update_automation(found.id, automation.model_copy(update={"enabled": found.enabled}))


def _definition(automation: AutomationCore) -> dict[str, Any]:
    dumped = automation.model_dump(mode="json", include={"description", "trigger", "actions"})
    # Sets are dumped as lists in any order, and every trigger has an id of its own.
    trigger = {
        name: sorted(v) if isinstance(v, list) and name != "match" else v for name, v in dumped["trigger"].items()
    }
    return {**dumped, "trigger": {name: value for name, value in trigger.items() if name != "id"}}


def _find(name: str) -> Automation | None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        found = client.read_automations_by_name(name)
    return found[0] if found else None


def _block(name: str) -> UUID:
    """Return the id of a block document given as `type/name`; raise ConfigError if it does not exist."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    kind, _, document = name.partition("/")
    try:
        with get_client(sync_client=True) as client:
            return client.read_block_document_by_name(document, kind, include_secrets=False).id
    except ObjectNotFound:
        raise ConfigError(
            f"the Prefect server has no block {name!r}; make one in the UI under Blocks, or name another as TYPE/NAME, "
            "such as slack-webhook/my-hook"
        ) from None
