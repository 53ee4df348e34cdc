"""Make tools of functions and classes of users. Guide: docs/guides/tools.md; rules: docs/behaviour/tools.md."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import create_model

from treadle.agent.tools.classes import class_settings
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.settings import ToolResources, ToolSettings
from treadle.agent.tools.signature import UserSignature
from treadle.agent.tools.user_calls import CallThreads
from treadle.agent.tools.user_tool import UserToolSettings, call_user, mark_of, user_schema
from treadle.core.errors import ConfigError

if TYPE_CHECKING:
    from treadle.agent.contract import Outcome, Task
    from treadle.agent.tools.source import ToolResume, ToolSource


class FunctionSettings(UserToolSettings):
    """Settings of a function."""

    function: ClassVar[Callable[..., Any]]
    signature: ClassVar[UserSignature]

    @property
    def version(self) -> int:
        """See `ToolSettings`."""
        mark = mark_of(type(self).function)
        return 1 if mark is None else mark.version

    @property
    def keeps_state(self) -> bool:
        """See `ToolSettings`."""
        return False

    @property
    def gives_outcome(self) -> bool:
        """See `ToolSettings`."""
        return False

    def known_schemas(self, name: str) -> tuple[ToolSchema, ...]:
        """See `ToolSettings`."""
        return (user_schema(name, type(self).signature),)

    def source(self, name: str, resources: ToolResources) -> ToolSource:
        """See `ToolSettings`. Raises ConfigError for a name that no tool can have."""
        return FunctionSource(name, self)


class FunctionSource:
    """Source of one function, which all episodes share."""

    resume: ToolResume = "stateless"

    def __init__(self, name: str, settings: FunctionSettings) -> None:
        self._settings = settings
        self.schemas: Sequence[ToolSchema] = settings.known_schemas(name)
        self._threads: CallThreads | None = None

    async def __aenter__(self) -> FunctionSource:
        self._threads = CallThreads(self.schemas[0].name, self._settings.num_threads)
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def facts(self) -> dict[str, str]:
        """Return nothing."""
        return {}

    async def episode(self, task: Task, seed: int) -> FunctionSource:
        """Return the shared function."""
        return self

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, context: CallContext
    ) -> ToolOutcome:
        """Run one call. Raises ToolError if the function does."""
        if self._threads is None:
            raise RuntimeError("call before open")
        kind = type(self._settings)
        return await call_user(
            name, kind.function, kind.signature, arguments, self._threads, self._settings, deadline, context
        )

    async def outcome(self) -> Outcome | None:
        """Return None: there is no state."""
        return None

    async def close(self) -> None:
        """Do nothing: the function is shared."""


@functools.lru_cache(maxsize=64)
def settings_of(found: Any) -> type[ToolSettings]:
    """Return the settings class of a function or class. Raises ConfigError if it cannot be a tool."""
    name = getattr(found, "__name__", type(found).__name__)
    if isinstance(found, type):
        return class_settings(found)
    if not inspect.isroutine(found):
        raise ConfigError(f"{name} is no tool; name a function, or a class with `@tool` methods")
    signature = UserSignature(found, name)
    made: type[FunctionSettings] = create_model(
        f"{name}Settings", __base__=FunctionSettings, __doc__=signature.description
    )
    made.function = staticmethod(found)
    made.signature = signature
    return made
