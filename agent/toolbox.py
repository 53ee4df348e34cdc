"""From the environment's settings to the tools themselves, each imported only where it is enabled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.agent.config import EnvironmentSettings
from treadle.agent.tools.outcome import Tool

if TYPE_CHECKING:
    from treadle.agent.tools.summarizer import Summarizer


def make_tools(settings: EnvironmentSettings, summarizer: Summarizer | None = None) -> list[Tool]:
    """The enabled tools, not yet opened; `summarizer` reads what searches find."""
    tools: list[Tool] = []
    if settings.call_limit("python"):
        from treadle.agent.tools.python import PythonTool

        python = settings.python
        tools.append(
            PythonTool(python.sandbox, time_limit_s=python.time_limit_s, max_output_chars=python.max_output_chars)
        )
    if settings.call_limit("search"):
        from treadle.agent.tools.search import SearchTool

        tools.append(SearchTool(settings.search, summarizer=summarizer))
    return tools


def sandbox_facts(settings: EnvironmentSettings) -> dict[str, str]:
    """What programs run in, for the stage's record: isolation, Python and package versions; empty without the tool."""
    if not settings.call_limit("python"):
        return {}
    from treadle.agent.sandbox.bubblewrap import describe

    return {f"sandbox_{name}": value for name, value in describe(settings.python.sandbox).items()}
