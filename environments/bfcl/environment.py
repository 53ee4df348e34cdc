"""Play a multi-turn task of `bfcl-eval`, as its own runner plays it with models that call tools natively."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

from treadle.agent.contract import CallRecord, Message, ModelTurn, Observation, Outcome, Task
from treadle.agent.dialects.base import Dialect
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.tools.outcome import OutcomeStatus
from treadle.agent.tools.schema import ToolSchema
from treadle.core.chat_turns import well_formed
from treadle.environments.bfcl.settings import BfclSettings
from treadle.environments.bfcl.worker import Worker, Workers, open_workers
from treadle.environments.custom.base import Environment
from treadle.environments.objectives import objective_of
from treadle.environments.types import Resources

_FAILED = "Error during execution:"
"""Beginning of the result of each call that `bfcl-eval` could not run."""


class Bfcl(Environment):
    """One task: messages of the user; each after the first is sent when the model ends a turn without a call."""

    dialect: ClassVar[Dialect] = FunctionsDialect()
    explores: ClassVar[bool] = True

    @classmethod
    def open_shared(cls, settings: BfclSettings, resources: Resources) -> AbstractAsyncContextManager[Workers]:
        """Start the program that runs `bfcl-eval`."""
        return open_workers()

    @classmethod
    async def tasks(cls, settings: BfclSettings, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the tasks of the configured categories; see `BfclSettings.train_share`."""
        async with open_workers() as workers, workers.connected() as worker:
            found = (await worker.ask("tasks"))["tasks"]
        for category in settings.categories:
            rows = [(name, text) for name, text in found if name.rpartition("_")[0] == f"multi_turn_{category}"]
            num_train = int(settings.train_share * len(rows))
            for name, text in rows[:num_train] if split == "train" else rows[num_train:]:
                dataset = f"bfcl-{category.replace('_', '-')}"
                yield {"id": name, "question": text, "payload": {"id": name}, "dataset": dataset}

    _worker: Worker | None = None

    async def reset(self, task: Task) -> str:
        """Begin the task in a process of its own; offer the functions of the task as tools."""
        self._id = str(task.payload["id"])
        self._workers: Workers = self.shared
        self._worker = await self._workers.connect()
        begun = await self._worker.ask("begin", task=self._id)
        self._messages = list(map(str, begun["messages"]))
        self._added = {int(turn): _schemas(tools) for turn, tools in begun["added"].items()}
        self._is_own = objective_of(task.payload) is None
        if not self._is_own:
            # A task that was made by exploration has one message of the user.
            self._messages, self._added = [task.text], {}
        self._max_steps: int = begun["max_steps"]
        self.schemas = _schemas(begun["tools"])  # type: ignore[misc]  # a class variable that `reset` may set
        self._turns: list[list[list[str]]] = [[]]
        self._num_steps = 0
        self._num_turns = 0
        self._is_over = False
        return self._messages[0]

    async def step(self, turn: ModelTurn) -> Observation:
        """Run a turn's calls; if it has none or an unreadable one, send the user's next message or end the task."""
        if turn.ended in ("context_full", "budget"):
            return Observation(status=turn.ended)
        self._num_turns += 1
        if not turn.calls:
            return self._next_message([], [])
        if any(call.error for call in turn.calls):
            return self._unread(turn, [call.error for call in turn.calls])
        assert self._worker is not None
        reply = await self._worker.ask("execute", calls=[[call.tool, call.arguments] for call in turn.calls])
        if reply["decoded"] is None:
            return self._unread(turn, [reply["error_text"]] * len(turn.calls))
        self._turns[-1].append(reply["decoded"])
        results = [well_formed(text) for text in reply["results"]]
        records, messages = [], []
        for call, text in zip(turn.calls, results, strict=True):
            status: OutcomeStatus = "error" if text.startswith(_FAILED) else "ok"
            records.append(CallRecord(call.tool, call.text, status, turn.number, text, id=call.id))
            messages.append(self.dialect.result(text, call.id))
        self._num_steps += 1
        if self._num_steps > self._max_steps:
            self._is_over = len(self._turns) == len(self._messages)
            return Observation(tuple(records), tuple(messages), "finished", truncated=not self._is_over)
        return Observation(tuple(records), tuple(messages))

    def _unread(self, turn: ModelTurn, errors: Sequence[str]) -> Observation:
        """Run no call of a turn with an unreadable one; send the next message or end the task, as `bfcl-eval` does."""
        pairs = list(zip(turn.calls, errors, strict=True))
        records = [CallRecord(call.tool, call.text, "invalid", turn.number, error, id=call.id) for call, error in pairs]
        messages = [self.dialect.result(error or "This call was not run.", call.id) for call, error in pairs]
        return self._next_message(records, messages)

    def _next_message(self, records: Sequence[CallRecord], messages: Sequence[Message]) -> Observation:
        turn = len(self._turns)
        if turn == len(self._messages):
            self._is_over = True
            return Observation(tuple(records), tuple(messages), "finished")
        self._turns.append([])
        self._num_steps = 0
        said = (*messages, Message(self._messages[turn]))
        return Observation(tuple(records), said, tools=tuple(self._added.get(turn, ())))

    async def outcome(self) -> Outcome:
        """Return the verdict of `bfcl-eval`; a conversation that did not reach its end counts as wrong.

        The reward is None if the model made no turn. A task that was made by exploration has an empty outcome.
        """
        if not self._is_own:
            return Outcome()
        if not self._is_over:
            return Outcome(0.0 if self._num_turns else None, False)
        async with self._workers.connected() as worker:
            verdict = await worker.ask("check", task=self._id, turns=self._turns)
        return Outcome(float(verdict["valid"]), bool(verdict["valid"]))

    async def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            await self._worker.close()


def _schemas(tools: Sequence[dict[str, Any]]) -> list[ToolSchema]:
    return [ToolSchema(tool["name"], tool["description"], tool["parameters"]) for tool in tools]
