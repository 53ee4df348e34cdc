"""Make tools of a user's class: one instance per episode, whose marked methods are tools."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from pydantic import create_model

from treadle.agent.outcome_values import as_outcome, require_finite
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.signature import UserSignature
from treadle.agent.tools.source import ToolResume
from treadle.agent.tools.user_calls import CallThreads, error_text
from treadle.agent.tools.user_tool import UserToolSettings, call_user, mark_of, user_schema
from treadle.core.class_settings import attribute_fields
from treadle.core.errors import ConfigError, ToolError, TreadleError
from treadle.core.untrusted.concealment import user_code
from treadle.core.work_clock import work_clock

if TYPE_CHECKING:
    from treadle.agent.contract import Outcome, Task
    from treadle.agent.tools.source import ToolSource

_OPTIONAL = ("setup", "outcome", "close")
"""Optional methods of a user's class that are not tools."""


class ClassSettings(UserToolSettings):
    """Settings of a class."""

    user_class: ClassVar[type]
    methods: ClassVar[Mapping[str, tuple[str | None, UserSignature]]]
    """Method -> (name of its tool, or None for the name of the entry; its parameters)."""

    @property
    def version(self) -> int:
        """See `ToolSettings`."""
        return int(getattr(self.user_class, "version", 1))

    @property
    def keeps_state(self) -> bool:
        """See `ToolSettings`."""
        return getattr(self.user_class, "resume", "reenact") != "stateless"

    @property
    def gives_outcome(self) -> bool:
        """See `ToolSettings`."""
        return hasattr(self.user_class, "outcome")

    def known_schemas(self, name: str) -> tuple[ToolSchema, ...]:
        """See `ToolSettings`."""
        return tuple(user_schema(own or name, signature) for own, signature in self.methods.values())

    def source(self, name: str, resources: ToolResources) -> ToolSource:
        """See `ToolSettings`. Raises ConfigError for a name that no tool can have."""
        return ClassSource(self, name)


class ClassSource:
    """Source of the tools of a class."""

    def __init__(self, settings: ClassSettings, name: str) -> None:
        self.settings = settings
        self.methods = {own or name: (method, signature) for method, (own, signature) in settings.methods.items()}
        self.schemas: Sequence[ToolSchema] = settings.known_schemas(name)
        self.resume: ToolResume = getattr(settings.user_class, "resume", "reenact")
        self._name = name
        self._threads: CallThreads | None = None

    async def __aenter__(self) -> ClassSource:
        self._threads = CallThreads(self._name, self.settings.num_threads)
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def facts(self) -> dict[str, str]:
        """Return nothing."""
        return {}

    async def episode(self, task: Task, seed: int) -> ClassTools:
        """Return the tools of a new instance. Raises ToolError if it cannot be made."""
        if self._threads is None:
            raise RuntimeError("episode before open")
        tools = ClassTools(self, self._threads, task)
        await tools.open()
        return tools


class ClassTools:
    """Tools of one instance. Calls run one after the other, in the order in which the model made them."""

    def __init__(self, source: ClassSource, threads: CallThreads, task: Task) -> None:
        self.schemas = source.schemas
        self._source = source
        self._settings = source.settings
        self._class = source.settings.user_class
        self._threads = threads
        self._task = task
        self._turn = asyncio.Lock()
        self._instance: Any = None
        self._num_running = 0

    async def open(self) -> None:
        """Make the instance and set it up. Raises ToolError."""
        async with self._code("__init__"):
            self._instance = self._class()
        async with self._code("setup"):
            for name in type(self._settings).model_fields.keys() - UserToolSettings.model_fields.keys():
                # A copy: a list or a table would be shared by all instances.
                setattr(self._instance, name, copy.deepcopy(getattr(self._settings, name)))
            if hasattr(self._instance, "setup"):
                await self._instance.setup(self._task)

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, context: CallContext
    ) -> ToolOutcome:
        """Run one call after the earlier ones have returned or timed out. Raises ToolError if the method does."""
        method, signature = self._source.methods[name]
        async with self._turn:
            if self._num_running:
                return ToolOutcome(
                    "timeout", f"{name} cannot run: an earlier call that took too long has not ended yet."
                )
            return await call_user(
                name,
                self._counted(getattr(self._instance, method)),
                signature,
                arguments,
                self._threads,
                self._settings,
                deadline,
                context,
                self._task.payload,
            )

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to count its running calls, since a thread keeps running after its call has timed out."""
        if inspect.iscoroutinefunction(inspect.unwrap(function)):
            return function

        @functools.wraps(function)
        def counted(*positional: Any, **named: Any) -> Any:
            self._num_running += 1
            try:
                return function(*positional, **named)
            finally:
                self._num_running -= 1

        return counted

    async def outcome(self) -> Outcome | None:
        """Return the outcome that the instance reports; None if its class has no such method. Raises ToolError."""
        if not hasattr(self._instance, "outcome"):
            return None
        source = f"{self._class.__name__}.outcome"
        async with self._code("outcome"):
            found = as_outcome(await self._instance.outcome(), source)
            if found is not None:
                require_finite(found.reward, f"{source} returned a reward of")
        return found

    async def close(self) -> None:
        """Close the instance. Raises ToolError."""
        if hasattr(self._instance, "close"):
            async with self._code("close"):
                await self._instance.close()

    @contextlib.asynccontextmanager
    async def _code(self, method: str) -> AsyncIterator[None]:
        """Run code of the class outside its tool calls; its errors and timeouts are raised as ToolError."""
        place = f"{self._class.__name__}.{method}"
        limit = work_clock().limit(work_clock().time() + self._settings.time_limit_s)
        try:
            async with limit:
                with user_code(self._instance, self._task.payload):
                    yield
        except TreadleError as error:
            # As in calls: a ToolError reports a failure of the infrastructure, which may pass.
            error.retryable |= type(error) is ToolError
            raise
        except Exception as error:  # noqa: BLE001 - any error that a user's class raises
            if limit.expired() and isinstance(error, TimeoutError):
                raise ToolError(f"{place} did not return in time_limit_s = {self._settings.time_limit_s:g} s") from None
            raise ToolError(f"{place}: {_said(error)}") from None


def _said(error: Exception) -> str:
    """Return type, message and place of an error in a user's code."""
    return "; ".join([error_text(error, {}), *getattr(error, "__notes__", ())])


def class_settings(found: type) -> type[ClassSettings]:
    """Return the settings class of a user's class. Raises ConfigError if it cannot be a tool."""
    name = found.__name__
    methods = _tool_methods(found)
    for method in _OPTIONAL:
        if hasattr(found, method) and not inspect.iscoroutinefunction(inspect.unwrap(getattr(found, method))):
            raise ConfigError(f"{name}.{method} must be written with `async def`")
    resume = getattr(found, "resume", "reenact")
    if resume not in get_args(ToolResume):
        raise ConfigError(f"{name}.resume is {resume!r}; use {', '.join(get_args(ToolResume))}")
    try:
        inspect.signature(found).bind()
    except TypeError:
        raise ConfigError(f"{name}() needs arguments; give each a default") from None
    fields = attribute_fields(found)
    for taken in fields:
        if taken in ("resume", "version"):
            raise ConfigError(f"annotate {name}.{taken} as ClassVar; it is no setting")
        if hasattr(ClassSettings, taken) or taken in ClassSettings.model_fields:
            raise ConfigError(f"{name}.{taken} cannot be a setting of that name; rename it")
    made: type[ClassSettings] = create_model(
        f"{name}Settings", __base__=ClassSettings, __doc__=inspect.getdoc(found), **fields
    )
    made.user_class = found
    made.methods = methods
    return made


def _tool_methods(found: type) -> dict[str, tuple[str | None, UserSignature]]:
    """Return the methods that are tools, in the order in which the class defines them."""
    name = found.__name__
    defined = dict.fromkeys(method for cls in reversed(found.__mro__[:-1]) for method in vars(cls))
    marked = {
        method: mark for method in defined if (mark := mark_of(inspect.getattr_static(found, method))) is not None
    }
    if not marked and "__call__" in defined:
        return {"__call__": (None, UserSignature(found.__call__, f"{name}.__call__", is_method=True))}
    if not marked:
        raise ConfigError(
            f"{name} has no tools; mark its methods with `@tool` (from treadle.api import tool), or write `__call__`"
        )
    tools: dict[str, tuple[str | None, UserSignature]] = {}
    for method, mark in marked.items():
        own = mark.name or (None if method == "__call__" else method)
        if own in [other for other, _ in tools.values()]:
            raise ConfigError(f"{name} has two tools called {own!r}")
        function = inspect.getattr_static(found, method)
        if not inspect.isfunction(function):
            raise ConfigError(f"{name}.{method} is marked with @tool and is no plain method")
        tools[method] = own, UserSignature(function, f"{name}.{method}", is_method=True)
    return tools
