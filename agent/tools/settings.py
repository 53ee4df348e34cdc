"""Define the settings that every entry of `environment.tools` has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field

from treadle.core.registry import Entry

if TYPE_CHECKING:
    from treadle.agent.tools.schema import ToolSchema
    from treadle.agent.tools.source import ToolSource
    from treadle.core.store.keyed_store import KeyedStore


@dataclass(frozen=True, slots=True)
class ToolResources:
    """What a source may use while it is open.

    Attributes:
        store: Function that returns a store of the run by its name; None outside a run.
    """

    store: Callable[[str], KeyedStore] | None = None


class ToolSettings(Entry):
    """Type and limits of one entry of `environment.tools`."""

    type: str
    """Type of the tool: a shipped one (`http`, `mcp`, `workspace`), `my_tools.py:weather` for a function or class in a
    file next to the configuration, `package.module:weather`, or an entry point in the group `treadle.tools`."""
    max_calls: int | None = Field(default=None, ge=0)
    """Most executed calls of each of its tools per rollout; none means no limit, 0 disables them."""

    @property
    def version(self) -> int:
        """Version of the type; increment it if its outcomes become different."""
        return 1

    @property
    def gives_outcome(self) -> bool:
        """Whether its sources may return an outcome of an episode."""
        return True

    @property
    def keeps_state(self) -> bool:
        """Whether its calls may depend on earlier ones of the episode, so that no episode continues from a prefix."""
        return True

    def with_interpreter(self, interpreter: Path) -> Self:
        """Return the settings with `interpreter` as the Python for programs, unless one is set.

        It is called in training, where this process runs in the training engine's Python, which has other packages.
        """
        return self

    def known_schemas(self, name: str) -> tuple[ToolSchema, ...]:
        """Return the tools of the entry called `name` that are known before its source is open.

        Raises ConfigError if a tool cannot have its name.
        """
        return ()

    def source(self, name: str, resources: ToolResources) -> ToolSource:
        """Return the source of the entry called `name`, not opened yet. Every type has its own."""
        raise NotImplementedError(f"{type(self).__name__} needs a method source(name, resources)")
