"""Replace the real tools with stubs that return at once, so that only the harness is measured."""

from __future__ import annotations

from treadle.agent.tools.outcome import CallContext, Tool, ToolOutcome
from treadle.environments.question import runtime, tools
from treadle.environments.question.settings import QuestionSettings


class StubTool:
    """Tool that returns the same text for every call."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text

    async def __aenter__(self) -> Tool:
        """Return the tool; there is nothing to open."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing; there is nothing to close."""

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Return the text."""
        return ToolOutcome("ok", self._text)


def replace_tools(text: str) -> None:
    """Make every stage of this process open stubs that return `text` instead of its tools."""

    def make_stubs(settings: QuestionSettings, *_: object, **__: object) -> list[Tool]:
        return [StubTool(name, text) for name in ("python", "search") if settings.call_limit(name)]

    assert hasattr(runtime, "make_tools") and hasattr(tools, "sandbox_facts"), "tools are opened elsewhere now"
    runtime.make_tools = make_stubs
    # No sandbox is used, and querying its facts takes 2 s.
    tools.sandbox_facts = lambda settings: {}
