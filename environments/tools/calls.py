"""Run the calls of an episode's turns: with limits, concurrently, and as recorded when the episode is resumed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson

from treadle.agent.contract import (
    Call,
    CallRecord,
    EpisodeDiverged,
    EpisodeOptions,
    Ledger,
    Message,
    ModelTurn,
    Observation,
    Outcome,
    StepContext,
    Task,
)
from treadle.agent.dialects.base import Dialect
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.settings import ToolResources, ToolSettings
from treadle.agent.tools.source import EpisodeTools, SharedTool, ToolSource
from treadle.core.chat_turns import well_formed
from treadle.core.errors import ConfigError
from treadle.core.gather import gather_or_cancel
from treadle.environments.tools.registry import check_names
from treadle.web.pages.control_tokens import without_tokens

OnLimit = Literal["notice", "silent", "stop", "refuse"]

TOOLS_UNIT = "tools"
"""Name of the cached unit with the tools that the model was given before its first turn."""
EMPTY_RESULT = "(no output)"
_NOT_RUN = "This call was not run."


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of the calls of one episode.

    Attributes:
        of_entry: Function from the name of an entry in `environment.tools`, or of a shipped tool, to the most executed
            calls of each of its tools; None means no limit.
        total: Most executed calls over all tools; None means no limit.
        on_limit: Reaction to a call over a limit; see `QuestionSettings.on_limit`. With `refuse`, the result of each
            such call reports the limit.
    """

    of_entry: Callable[[str], int | None]
    total: int | None = None
    on_limit: OnLimit = "notice"


@contextlib.asynccontextmanager
async def open_sources(
    settings: Mapping[str, ToolSettings], resources: ToolResources, taken: Iterable[str] = ()
) -> AsyncIterator[dict[str, ToolSource]]:
    """Open the sources of `environment.tools` for the duration of the block, except entries with `max_calls = 0`.

    `taken` are the names of the environment's own tools. Raises ConfigError if two tools have the same name or one has
    a name in `taken`, and ToolError or ConfigError if a source cannot be made or opened.
    """
    async with contextlib.AsyncExitStack() as stack:
        sources: dict[str, ToolSource] = {}
        for name, entry in settings.items():
            if entry.max_calls != 0:
                sources[name] = await stack.enter_async_context(entry.source(name, resources))
        try:
            check_names({name: source.schemas for name, source in sources.items()}, taken)
        except ValueError as error:
            raise ConfigError(f"environment.tools: {error}") from None
        yield sources


def source_facts(sources: Mapping[str, ToolSource]) -> dict[str, str]:
    """Return the facts of open sources for the record of a stage."""
    return {f"{name}_{fact}": value for name, source in sources.items() for fact, value in source.facts().items()}


@dataclass(slots=True)
class EpisodeCalls:
    """Tools of one episode, the limits of their calls, and the ledger that records the calls.

    Attributes:
        sources: Open sources by the name of their entry.
        dialect: Dialect that formats results for the model.
    """

    sources: Mapping[str, ToolSource]
    dialect: Dialect
    limits: CallLimits = CallLimits(lambda entry: None)
    ledger: Ledger = field(init=False)
    recorded: Mapping[str, CallRecord] = field(default_factory=dict)
    """Id -> recorded call, which replaces a call of a stateless tool when a resumed episode repeats a turn."""
    _tools: dict[str, EpisodeTools] = field(default_factory=dict)
    _entries: dict[str, str] = field(default_factory=dict)
    _schemas: dict[str, ToolSchema] = field(default_factory=dict)
    _question: str = ""
    _route: str | None = None
    _added_tokens: frozenset[str] = frozenset()

    async def begin(self, task: Task, options: EpisodeOptions, limits: CallLimits) -> tuple[ToolSchema, ...]:
        """Start the tools of the episode; return their schemas. Raises ToolError."""
        self.limits = limits
        self.ledger = Ledger(options.history)
        self._question, self._route = task.user_message, task.search
        self._added_tokens = options.added_tokens
        for name, source in self.sources.items():
            self._tools[name] = source if type(source) is SharedTool else await source.episode(task, options.seed)
        if not self.dialect.ends_every_turn:  # tags are described in the system message, and each is an entry
            self._entries = {name: name for name in self._tools}
            return ()
        if (known := options.cache.get(TOOLS_UNIT)) is not None:
            # A server may have other tools by now, but the model was given these.
            self._add([ToolSchema(**one) for one in orjson.loads(known)])
            return tuple(self._schemas.values())
        schemas = self._new_schemas()
        if any(not isinstance(source, SharedTool) for source in self.sources.values()):
            options.cache.append(TOOLS_UNIT, orjson.dumps(schemas))
        return schemas

    def _new_schemas(self) -> tuple[ToolSchema, ...]:
        """Return the schemas of tools that are new in this episode; of several with the same name, the first one."""
        found: dict[str, ToolSchema] = {}
        for tools in self._tools.values():
            for one in tools.schemas:
                found.setdefault(one.name, one)
        new = [one for name, one in found.items() if name not in self._schemas]
        self._add(new)
        return tuple(new)

    def _add(self, schemas: Iterable[ToolSchema]) -> None:
        for schema in schemas:
            self._schemas[schema.name] = schema

    def _entry(self, tool: str) -> str | None:
        """Return the name of the entry that provides a tool; None if no entry does."""
        if (entry := self._entries.get(tool)) is not None:
            return entry
        for name, tools in self._tools.items():
            if any(schema.name == tool for schema in tools.schemas):
                self._entries[tool] = name
                return name
        return None

    async def run(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Run the allowed calls of a turn concurrently, and refuse the others.

        The observation has the calls in the order of the turn. Its status is `limit` if a call over a limit ends the
        rollout.
        """
        is_native = self.dialect.ends_every_turn
        calls = turn.calls
        outcomes: dict[str, ToolOutcome] = {}
        if is_native or self.recorded or any(call.error for call in calls):
            for call in calls:
                if (settled := self._recorded(call) or self._unreadable(call)) is not None:
                    outcomes[call.id] = settled
            calls = tuple([call for call in calls if call.id not in outcomes])
        refusals = self._refusals(calls)
        if refusals:
            calls = tuple([call for call in calls if call.id not in refusals])
        for call, outcome in zip(calls, await self._run_all(calls, turn, context), strict=True):
            outcomes[call.id] = outcome
        records, messages, ends = [], [], False
        for call in turn.calls:
            if call.id in refusals:
                notice, is_last = refusals[call.id]
                ends = ends or is_last
                outcomes[call.id] = ToolOutcome("refused", notice)
            record = record_of(call, turn.number, outcomes[call.id])
            earlier = self.recorded.get(call.id)
            if earlier is not None and (earlier.status, earlier.text) == (record.status, record.text):
                record = earlier  # times differ when a call is made again
            records.append(record)
            self.ledger.add(record)
            if is_native or record.text or record.executed:
                messages.append(self._message(record))
        added = self._new_schemas() if is_native else ()
        return Observation(tuple(records), tuple(messages), "limit" if ends else None, tools=added)

    async def _run_all(self, calls: Sequence[Call], turn: ModelTurn, context: StepContext) -> Sequence[ToolOutcome]:
        if not calls:
            return ()
        jobs = [self._call(call, turn, context) for call in calls]
        # Most turns have one call, which needs no task of its own.
        return [await jobs[0]] if len(jobs) == 1 else await gather_or_cancel(jobs)

    async def _call(self, call: Call, turn: ModelTurn, context: StepContext) -> ToolOutcome:
        """Run one call that is allowed and can be read."""
        told = CallContext(self._question, context.log or (turn.text,), context.seed, context.budget_s, self._route)
        tools = self._tools[self._entries[call.tool]]
        return await tools.call(call.tool, call.arguments, deadline=context.deadline, context=told)

    async def _run_again(self, call: Call, turn: ModelTurn, context: StepContext) -> ToolOutcome:
        """Run a recorded call again, so that its tool has the same state as after the first run."""
        return await self._call(call, turn, context)

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """Put the tools into the state that they had after recorded calls.

        Calls of stateless tools are only counted; calls of tools that resume by `reenact` are made again, in order.
        Raises EpisodeDiverged if a call has another outcome this time, or the state of a tool cannot be restored.
        """
        calls = {call.id: call for call in turn.calls}
        for record in observation.calls:
            entry = self._entry(record.tool)
            resume = "stateless" if entry is None else self.sources[entry].resume
            if resume == "stateless" or not record.executed or record.id not in calls:
                continue
            if resume == "restart":
                raise EpisodeDiverged(f"the state of {record.tool} was lost")
            again = record_of(calls[record.id], turn.number, await self._run_again(calls[record.id], turn, context))
            if (again.status, again.text) != (record.status, record.text):
                raise EpisodeDiverged(f"a recorded call of {record.tool} had another outcome when it was made again")
        self.count(observation.calls)
        self._add(observation.tools)

    def count(self, records: Sequence[CallRecord]) -> None:
        """Add recorded calls to the ledger."""
        for record in records:
            self.ledger.add(record)

    async def outcome(self) -> Outcome | None:
        """Return the outcome of the ended episode from the first tool that reports one; None if no tool does."""
        for tools in self._own():
            if (outcome := await tools.outcome()) is not None:
                return outcome
        return None

    async def close(self) -> None:
        """Release the tools of the episode."""
        if own := self._own():
            async with contextlib.AsyncExitStack() as stack:
                for tools in own:
                    stack.push_async_callback(tools.close)
        self._tools = {}

    def _own(self) -> list[EpisodeTools]:
        """Return the tools that belong to this episode alone."""
        return [tools for tools in self._tools.values() if type(tools) is not SharedTool]

    def _recorded(self, call: Call) -> ToolOutcome | None:
        record = self.recorded.get(call.id)
        if record is None:
            return None
        entry = self._entry(call.tool)
        resume = "stateless" if entry is None else self.sources[entry].resume
        if resume == "restart" and record.executed:
            raise EpisodeDiverged(f"the state of {call.tool} was lost")
        return outcome_of(record) if resume == "stateless" else None

    def _unreadable(self, call: Call) -> ToolOutcome | None:
        """Return the outcome of a call that cannot be made as the model wrote it; None for others."""
        if call.error:
            return ToolOutcome("invalid", f"Error: {call.error}.")
        if not self.dialect.ends_every_turn:
            return None  # a tag is a tool, and its text the argument
        schema = self._schemas.get(call.tool)
        if schema is None or self._entry(call.tool) is None:
            names = ", ".join(self._schemas) or "none"
            return ToolOutcome("invalid", f"Error: there is no tool {call.tool!r}. Tools: {names}.")
        if error := schema.argument_error(call.arguments):
            return ToolOutcome("invalid", f"Error: the arguments of {call.tool} do not fit: {error}.")
        return None

    def _message(self, record: CallRecord) -> Message:
        """Return the message with a result.

        Control tokens in a result are always encoded as plain text. Other added tokens, such as Qwen's `<tool_call>`,
        would be encoded as one token, so they are broken up: in results of native calls, and in all from the web.
        """
        text = record.text
        if self.dialect.ends_every_turn and not text:
            text = EMPTY_RESULT if record.executed else _NOT_RUN
        if self._added_tokens and (record.sources or self.dialect.ends_every_turn):
            text = without_tokens(text, self._added_tokens)
        return self.dialect.result(text, self._label(record))

    def _label(self, record: CallRecord) -> str:
        """Return the label of a result in its message: the id of the call."""
        return record.id

    def _refusals(self, calls: Sequence[Call]) -> dict[str, tuple[str, bool]]:
        """Return the notice for each call over a limit, by id, and whether the call ends the rollout."""
        on_limit = self.limits.on_limit
        allowed: list[str] = []
        refused: Counter[str] = Counter()
        found = {}
        for call in calls:
            reason = self._limit_message(call.tool, allowed)
            if reason is None:
                allowed.append(call.tool)
                continue
            # With `notice`, the second refused call of a tool ends the rollout.
            earlier = self.ledger.refused(call.tool) + refused[call.tool]
            ends = on_limit == "stop" or (on_limit == "notice" and earlier >= 1)
            refused[call.tool] += 1
            found[call.id] = ("" if ends or on_limit == "silent" else f"{reason} Go on without it.", ends)
        return found

    def _limit_message(self, tool: str, allowed: Sequence[str]) -> str | None:
        """Return the message of the limit that rules out one more call; None if the call is allowed.

        `allowed` are the tools of the turn's earlier calls that will run.
        """
        executed = self.ledger.executed
        entry = self._entry(tool)
        limit = 0 if entry is None else self.limits.of_entry(entry)
        if limit == 0:
            return f"The {tool} tool is not available here."
        if limit is not None and executed[tool] + allowed.count(tool) >= limit:
            return f"The limit of {tool} calls ({limit}) is reached; this call was not run."
        total = self.limits.total
        if total is not None and executed.total() + len(allowed) >= total:
            return f"The limit of tool calls ({total}) is reached; this call was not run."
        return None


def outcome_of(record: CallRecord) -> ToolOutcome:
    """Return the outcome of a recorded call."""
    return ToolOutcome(
        record.status,
        record.text,
        record.seconds,
        record.cached,
        record.note,
        record.prompt_tokens,
        record.completion_tokens,
        record.sources,
    )


def record_of(call: Call, turn: int, outcome: ToolOutcome) -> CallRecord:
    """Return the record of a call with its outcome."""
    return CallRecord(
        call.tool,
        call.text,
        outcome.status,
        turn,
        well_formed(outcome.text),
        outcome.seconds,
        outcome.cached,
        outcome.note,
        outcome.prompt_tokens,
        outcome.completion_tokens,
        outcome.sources,
        call.id,
    )
