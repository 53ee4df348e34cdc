"""Tools that answer at once, in place of the real ones: what is measured is the harness, not what it calls."""

from __future__ import annotations

from treadle.agent import opening, rollouts
from treadle.agent.config import EnvironmentSettings
from treadle.agent.tools.outcome import CallContext, Tool, ToolOutcome


class StubTool:
    """A tool that says the same to every call."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text

    async def __aenter__(self) -> Tool:
        """Nothing to open."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to close."""

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """The text."""
        return ToolOutcome("ok", self._text)


def take_the_place_of_tools(text: str) -> None:
    """From now on every stage of this process opens stubs that say `text` for its tools."""

    def make_stubs(settings: EnvironmentSettings, *_: object, **__: object) -> list[Tool]:
        return [StubTool(name, text) for name in ("python", "search") if settings.call_limit(name)]

    assert hasattr(opening, "make_tools") and hasattr(rollouts, "sandbox_facts"), "tools are opened elsewhere now"
    opening.make_tools = make_stubs
    # Nothing runs in a sandbox, and to ask what one would hold takes 2 s.
    rollouts.sandbox_facts = lambda settings: {}
