"""Find types of environments by name: shipped ones, entry points, classes in a file or a module."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.agent.contract import Task
from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.environments.custom.base import Environment
from treadle.environments.custom.instance_class import InstanceClassType, is_instance_class
from treadle.environments.custom.kind import CustomType
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.settings import DEFAULT_TYPE, EnvironmentSettings
from treadle.environments.types import EnvironmentType, Traits


def environment_type(settings: EnvironmentSettings) -> EnvironmentType:
    """Return the type that settings belong to."""
    return find_type(settings.type, settings.code_file)


def find_type(name: str, file: Path | None = None) -> EnvironmentType:
    """Return a type by its name; `file` has the code if the name is a class in a file.

    Raises ConfigError, with a list of the known types, if there is no such type.
    """
    return _type_of(*ENVIRONMENTS.find(name, file))


def traits_of(settings: EnvironmentSettings) -> Traits:
    """Return the traits of an environment."""
    return environment_type(settings).traits(settings)


def hidden_information(settings: EnvironmentSettings, task: Task) -> str | None:
    """Return a sentence that states what the policy cannot see of a task; None if its environment hides nothing.

    The task must have its hidden columns. Only critics, scorers and models that play other roles may read it.
    """
    state = getattr(environment_type(settings), "hidden_information", None)
    found: str | None = None if state is None else state(settings, task)
    return found


def episode_name(settings: EnvironmentSettings, *, keeps_state: bool = False) -> str:
    """Return a description of an environment's episodes for messages about operations that they do not support.

    Set `keeps_state` if the state of its tools is the reason.
    """
    if settings.type == DEFAULT_TYPE and keeps_state:
        return "a rollout with tools that keep state (environment.tools)"
    if settings.type == DEFAULT_TYPE:
        return "a rollout with native tool calls (environment.tools, or dialect = functions)"
    return f"an episode of {settings.type}"


def environment_name(settings: object) -> str:
    """Return the name of the type in the settings of a record or a run, without loading the type's code."""
    environment = settings.get("environment") if isinstance(settings, Mapping) else None
    name = environment.get("type") if isinstance(environment, Mapping) else None
    return name if isinstance(name, str) else DEFAULT_TYPE


def require_question(settings: EnvironmentSettings, what: str) -> QuestionSettings:
    """Return the settings of an environment of type `question`; raise ConfigError, naming what needs it, for others."""
    if not isinstance(settings, QuestionSettings):
        raise ConfigError(f'{what} needs environment.type = "question", not {settings.type!r}')
    return settings


@functools.lru_cache(maxsize=64)
def _type_of(found: Any, name: str) -> EnvironmentType:
    return _as_type(found, name)


def _check_methods(environment: type[Environment], name: str) -> None:
    """Raise ConfigError for a method without `async def`, or `tasks` without `@classmethod`."""
    for method in ("reset", "step", "outcome", "score", "close"):
        if not inspect.iscoroutinefunction(inspect.unwrap(getattr(environment, method))):
            raise ConfigError(f"environment.type: {name}.{method} must be written with `async def`")
    if not inspect.ismethod(environment.tasks):
        raise ConfigError(f"environment.type: {name}.tasks must be a `@classmethod`")


def _as_type(found: Any, name: str) -> EnvironmentType:
    """Return what the registry found as a type of environment; adapt a user's environment class."""
    try:
        if isinstance(found, type) and issubclass(found, Environment):
            if found.step is Environment.step:
                raise ConfigError(
                    f"environment.type: {name} has no method step(turn), which reacts to the model's turns"
                )
            _check_methods(found, name)
            return CustomType(found)
        if is_instance_class(found):
            return InstanceClassType(found)
        made = found() if isinstance(found, type) else found
    except ConfigError:
        raise
    except Exception as error:  # any error that a user's class raises
        raise ConfigError(f"environment.type: {name} cannot be made: {type(error).__name__}: {error}") from error
    missing = [part for part in ("settings", "traits", "open") if not hasattr(made, part)]
    if missing:
        raise ConfigError(
            f"environment.type: {name} is no environment, it has no {missing[0]}: derive it from "
            "treadle.api.Environment"
        )
    kind: EnvironmentType = made
    return kind


ENVIRONMENTS = Registry(
    base=EnvironmentSettings,
    key="environment",
    group="treadle.environments",
    example="my_envs.py:Guess",
    shipped={
        "question": "treadle.environments.question.kind:QuestionType",
        "planning": "treadle.environments.planning.kind:PlanningType",
        "bfcl": "treadle.environments.bfcl.kind:BfclType",
        "service": "treadle.environments.remote.kind:ServiceType",
        "ledger": "treadle.environments.ledger.environment:Ledger",
        "colbench/backend": "treadle.environments.colbench.kind:BackendType",
        "colbench/frontend": "treadle.environments.colbench.frontend.kind:FrontendType",
    },
    settings_of=lambda found, place: _type_of(found, place).settings,
)
"""Types of environments."""

AnyEnvironment = TypeAliasType(
    "AnyEnvironment", Annotated[SerializeAsAny[EnvironmentSettings], WrapValidator(ENVIRONMENTS.validate), ENVIRONMENTS]
)
"""Settings of an environment of any type, validated by the section of the type that `type` names."""
