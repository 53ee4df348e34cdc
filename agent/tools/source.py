"""Define what episodes need of tools: a process opens their sources once, and each episode gets its own tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from treadle.agent.tools.outcome import CallContext, Tool, ToolOutcome
from treadle.agent.tools.schema import ToolSchema

if TYPE_CHECKING:
    from treadle.agent.contract import Outcome, Task

ToolResume = Literal["stateless", "reenact", "restart"]
"""How the calls of an interrupted episode are resumed. `stateless`: recorded outcomes are enough; `reenact`: the calls
are made again on new state, and their outcomes are compared; `restart`: the rollout begins again."""


class EpisodeTools(Protocol):
    """Tools of one source for one episode."""

    @property
    def schemas(self) -> Sequence[ToolSchema]:
        """The tools that can be called now. New ones may appear between calls, for example from an MCP server."""
        ...

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, context: CallContext
    ) -> ToolOutcome:
        """Run one call; `arguments` fit the schema. `deadline` is a time of `treadle.core.work_clock`.

        Never raises for a mistake of the agent. Raises ToolError only if the tool itself is out of order; the rollout
        then stays pending.
        """
        ...

    async def outcome(self) -> Outcome | None:
        """Return the result of the ended episode that only the live state of the tools shows; None if there is none."""
        ...

    async def close(self) -> None:
        """Release what the episode holds; called once, also after errors."""
        ...


class ToolSource(Protocol):
    """Origin of one or more tools, opened once per process: `async with source:` around all episodes.

    Attributes:
        resume: How interrupted episodes resume.
    """

    resume: ToolResume

    async def __aenter__(self) -> ToolSource: ...

    async def __aexit__(self, *exc: object) -> None: ...

    @property
    def schemas(self) -> Sequence[ToolSchema]:
        """The tools that every episode begins with; known once the source is open."""
        ...

    def facts(self) -> dict[str, str]:
        """Return facts for the record of the stage, such as names and schemas that a server reported."""
        ...

    async def episode(self, task: Task, seed: int) -> EpisodeTools:
        """Return the tools of one rollout. Raises ToolError if they cannot be provided."""
        ...


class SharedTool:
    """Source of one tool without state, whose only argument is a text: all episodes share it."""

    resume: ToolResume = "stateless"

    def __init__(self, tool: Tool, schema: ToolSchema) -> None:
        self._tool = tool
        (self._parameter,) = schema.parameters["required"]
        self.schemas: Sequence[ToolSchema] = (schema,)

    async def __aenter__(self) -> SharedTool:
        await self._tool.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._tool.__aexit__(*exc)

    def facts(self) -> dict[str, str]:
        """Return nothing."""
        return {}

    async def episode(self, task: Task, seed: int) -> SharedTool:
        """Return the shared tool."""
        return self

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, context: CallContext
    ) -> ToolOutcome:
        """Run one call."""
        # A model may add arguments that the schema does not name.
        argument = arguments[self._parameter] if len(arguments) > 1 else next(iter(arguments.values()))
        return await self._tool.call(argument, deadline=deadline, context=context)

    async def outcome(self) -> Outcome | None:
        """Return None: there is no state."""
        return None

    async def close(self) -> None:
        """Do nothing: the tool is shared."""
