"""Models that explore, write, solve and grade tasks of the ledger by rule, and runs that let them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from support.servers.hosted_service import hosted
from support.servers.scripted_server import Fault, Item, RecordedRequest, ScriptedServer
from support.tables.score_tables import new_run

from treadle.core.config import load_config, merge
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.tables import TABLES
from treadle.datagen.exploration.work import HINT
from treadle.stages.recipes.base import Recipe, Step
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig

FAST = {"retry_limit": 0, "backoff_base_s": 0.0, "outage_wait_s": 60.0, "probe_base_s": 0.05, "connect_timeout_s": 30.0}
NUM_STEPS = 3
"""Accounts that an exploration looks at, one in a turn."""
THOUGHT = "I follow the steps."
"""What the solver writes before each action, and the summariser's reference does not have."""


class Explored(Recipe):
    """Originals, tasks made by exploring, and their mixture."""

    steps: ClassVar[tuple[Step, ...]] = (
        Step(("questions",), qualifier="seed"),
        Step(("exploration",)),
        Step(("questions",)),
        Step(("rollouts", "scores"), each="model"),
    )


def _calls(**arguments: Any) -> str:
    return json.dumps(arguments)


def explore(request: RecordedRequest) -> str:
    """Look at one account after the other."""
    turn = sum(message["role"] == "assistant" for message in request.messages or ())
    if turn >= NUM_STEPS:
        return _calls(call="submit", answer=0)
    account = f"A{turn + 1}"
    return "\n".join([_calls(call="get_account", account=account), _calls(call="list_orders", account=account)])


def shown(request: RecordedRequest) -> dict[str, Any]:
    """Return the JSON object on the last line of what the summariser or the grader is shown."""
    assert request.messages is not None
    found: dict[str, Any] = json.loads(request.messages[-1]["content"].splitlines()[-1])
    return found


def summarise(request: RecordedRequest) -> str:
    """Write two tasks about each account that was looked at, and one that cannot be right about the first."""
    tasks: list[dict[str, Any]] = []
    for step in shown(request)["steps"]:
        lines = [json.loads(line) for line in step["observation"].splitlines()]
        account = next((one for one in lines if "holder" in one), None)
        if account is None:
            continue
        listed = next(one for one in lines if "orders" in one)["orders"]
        holder, still = account["holder"], [one for one in listed if one["status"] == "open"]
        look = [_calls(call="find_account", holder=holder), _calls(call="list_orders", account=account["account"])]
        total = sum(one["amount"] for one in still)
        cancel = [_calls(call="cancel_order", order=one["order"]) for one in still]
        tasks += [
            _task(f"How many cents are all orders of {holder} worth that are open?", [*look, _submit(total)], 0.9),
            _task(
                f"{holder} is leaving: cancel everything open, and hand in the number of orders.",
                [*look, *cancel, _submit(len(still))],
                0.8,
            ),
        ]
    holder = tasks[0]["query"].partition("orders of ")[2].partition(" ")[0]
    tasks.append(_task(f"Teleport the desk of {holder} to Mars and wait.", [_calls(call="teleport")], 0.4))
    return "```json\n" + json.dumps([one for one in tasks if one["query"] not in shown(request)["known"]]) + "\n```"


def _submit(answer: int) -> str:
    return _calls(call="submit", answer=answer)


def _task(query: str, reference: list[str], confidence: float) -> dict[str, Any]:
    return {"query": query, "reference": reference, "confidence": confidence}


def solve(request: RecordedRequest) -> str:
    """Follow the hint, one action in a turn after a thought; without one hand in 0."""
    messages = [one for one in request.messages or () if one["role"] != "system"]
    asked = messages[0]["content"]
    if HINT not in asked:
        return _submit(0)
    steps = [line.partition(". ")[2] for line in asked.partition(HINT)[2].strip().splitlines()]
    turn = sum(message["role"] == "assistant" for message in messages)
    return f"{THOUGHT}\n{steps[turn] if turn < len(steps) else _submit(0)}"


def grade(request: RecordedRequest) -> str:
    """Say that a goal is met if the last action hands in something else than 0."""
    last = shown(request)["steps"][-1]["action"]
    is_met = json.loads(last.splitlines()[-1]).get("answer", 0) != 0
    return json.dumps({"rationale": "It says so.", "score": 90 if is_met else 10})


Answer = Callable[[RecordedRequest], Item]
SCRIPTS: Mapping[str, Answer] = {"explorer": explore, "summariser": summarise, "solver": solve, "grader": grade}


@dataclass
class Desk:
    """Servers of all roles with the requests that they answered, and a run."""

    servers: dict[str, ScriptedServer]
    asked: dict[str, list[RecordedRequest]]
    run: Run

    def config(self, **changes: Any) -> TreadleConfig:
        """Return the configuration of four training tasks of the ledger and one held-out one, with changes."""
        models = {
            role: {"model": role, "api": "chat", "endpoints": [{"url": server.url}], **FAST}
            for role, server in self.servers.items()
        }
        grader = models.pop("grader")
        base: dict[str, Any] = {
            "seed": 5,
            "flow": {
                "recipe": {"type": "support.exploration.desk:Explored"},
                "stages": ["exploration", "rollouts", "scores"],
                "models": ["solver"],
            },
            "models": models,
            "environment": {"type": "ledger", "num_tasks": 4, "max_turns": 8},
            "questions": {"sources": [{"from": "environment"}]},
            "scorers": {"judged": {"type": "llm-binary-gt", "model": grader}},
            "exploration": {
                "roles": {role: {"model": role} for role in ("explorer", "summariser", "solver")},
                "filters": [{"type": "lexical", "within": "seed"}],
                "pending_retries": 0,
            },
        }
        if "environment" in changes:
            del base["environment"]
        return load_config(TreadleConfig, data=merge(base, changes))

    async def make(self, config: TreadleConfig, *addresses: str, **execution: bool) -> StageRecord:
        """Run instances one after the other; return the record of the last one."""
        records = [
            await asyncio.to_thread(execute, instance(config, Address.parse(one)), self.run, **execution)
            for one in addresses
        ]
        return records[-1]

    def rows(self, record: StageRecord, kind: str) -> list[dict[str, Any]]:
        """Return the rows of a result, hidden columns included."""
        return list(self.run.rows(record.outputs[kind]).rows(TABLES[kind].schema.names))


@contextlib.asynccontextmanager
async def opened_desk(folder: Path, run: Run | None = None, **scripts: Answer) -> AsyncIterator[Desk]:
    """Serve the models of all roles by their scripts, or by others, for a new run in a folder or an earlier one."""
    asked: dict[str, list[RecordedRequest]] = {}
    async with contextlib.AsyncExitStack() as stack:
        servers = {}
        for role, script in {**SCRIPTS, **scripts}.items():
            server = hosted(_recorded(script, asked.setdefault(role, [])), model=role)
            servers[role] = await stack.enter_async_context(server)
        yield Desk(servers, asked, run or new_run(folder / "run"))


def _recorded(script: Answer, asked: list[RecordedRequest]) -> Answer:
    def answer(request: RecordedRequest) -> Item:
        if not is_work(request.body):
            return "yes"
        item = script(request)
        if not isinstance(item, Fault):
            asked.append(request)
        return item

    return answer


def is_work(body: Mapping[str, Any]) -> bool:
    """Return whether a request is not one of the preflight, which has neither a system message nor tools."""
    return "tools" in body or any(message["role"] == "system" for message in body.get("messages", ()))


def _served(script: Answer) -> Answer:
    return lambda request: script(request) if is_work(request.body) else "yes"


SERVED: Mapping[str, Answer] = {role: _served(script) for role, script in SCRIPTS.items()}
"""The scripts for servers that are asked by the preflight as well."""


def broken_after(script: Answer, number: int) -> Answer:
    """Return a script whose server fails from the request `number` on, counted from 0."""
    count = 0

    def answer(request: RecordedRequest) -> Item:
        nonlocal count
        count += 1
        return Fault.status(500) if count > number else script(request)

    return answer
