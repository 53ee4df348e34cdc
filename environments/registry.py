"""Find types of environments by name: shipped ones, entry points, classes in a file or a module."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler, SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from treadle.core.errors import ConfigError
from treadle.core.plugins import entry_point_places, find_code_file, from_file, from_module, import_folder_of
from treadle.core.untrusted.input_files import file_sha256
from treadle.environments.custom.base import Environment
from treadle.environments.custom.kind import CustomType
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.settings import DEFAULT_TYPE, EnvironmentSettings
from treadle.environments.types import EnvironmentType, Traits

_log = logging.getLogger(__name__)

SHIPPED = {"question": "treadle.environments.question.kind:QuestionType"}
"""Name -> class of the type."""

ENTRY_POINT_GROUP = "treadle.environments"
"""Group of entry points; the name of an entry point is the name of the type in the configuration."""


def environment_type(settings: EnvironmentSettings) -> EnvironmentType:
    """Return the type that settings belong to."""
    return find_type(settings.type, settings.code_file)


def traits_of(settings: EnvironmentSettings) -> Traits:
    """Return the traits of an environment."""
    return environment_type(settings).traits(settings)


def parse_environment(data: Any) -> EnvironmentSettings:
    """Return the settings of an environment from data that a stage dumped. Raises ValueError."""
    if isinstance(data, EnvironmentSettings):
        return data
    if not isinstance(data, Mapping):
        raise ValueError("an environment is a table")
    name = data.get("type", DEFAULT_TYPE)
    if not isinstance(name, str):
        raise ValueError("the type of an environment is a string")
    given = dict(data)
    file = find_code_file(name, given.get("code_file"), "environment")
    if file is not None:
        given |= {"code_file": file, "code_sha256": file_sha256(file)}
    elif given.get("code_file") or given.get("code_sha256"):
        raise ValueError(
            f"code_file and code_sha256 belong to a type in a file, and type = {name!r} is none; leave them out"
        )
    try:
        settings = find_type(name, file).settings
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return settings.model_validate(given)


def _parse(data: Any, handler: ValidatorFunctionWrapHandler) -> EnvironmentSettings:
    return parse_environment(data)


class _SchemaOfTypes:
    """JSON schema of an environment: the keys of every registered type, and any keys for a class named by its place.

    Prefect's form shows it. No class is loaded that only a configuration names.
    """

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        variants = []
        for name in (*SHIPPED, *_entry_points()):
            try:
                settings = find_type(name).settings
            except ConfigError as error:
                _log.warning("the keys of an environment are left out: %s", error)
                continue
            variant = _own_schema(settings, handler)
            variant["properties"]["type"] |= {"const": name, "default": name}
            variants.append(variant | {"title": name, "required": [] if name == DEFAULT_TYPE else ["type"]})
        of_place = _own_schema(EnvironmentSettings, handler)
        del of_place["properties"]["type"]["default"]
        of_place["properties"]["type"]["pattern"] = ":"
        more = {"title": "class in a file or module", "required": ["type"], "additionalProperties": True}
        return {"anyOf": [*variants, of_place | more]}


def _own_schema(settings: type[EnvironmentSettings], handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """Return the schema of a section that may be changed."""
    return copy.deepcopy(handler.resolve_ref_schema(handler(settings.__pydantic_core_schema__)))


AnyEnvironment = Annotated[SerializeAsAny[EnvironmentSettings], WrapValidator(_parse), _SchemaOfTypes()]
"""Settings of an environment of any type, validated by the section of the type that `type` names."""


def environment_name(settings: object) -> str:
    """Return the type in the settings of a record or a run, by its name; no code of the type is loaded."""
    environment = settings.get("environment") if isinstance(settings, Mapping) else None
    name = environment.get("type") if isinstance(environment, Mapping) else None
    return name if isinstance(name, str) else DEFAULT_TYPE


def require_question(settings: EnvironmentSettings, what: str) -> QuestionSettings:
    """Return the settings of an environment of type `question`; raise ConfigError, naming what needs it, for others."""
    if not isinstance(settings, QuestionSettings):
        raise ConfigError(f'{what} needs environment.type = "question", not {settings.type!r}')
    return settings


def shipped_settings() -> list[type[EnvironmentSettings]]:
    """Return the settings of all shipped types, for the reference and for suggestions."""
    return [find_type(name).settings for name in SHIPPED]


def find_type(name: str, file: Path | None = None) -> EnvironmentType:
    """Return a type by its name; `file` is that of a class in a file. Raises ConfigError, listing what there is."""
    if file is not None:
        attribute = name.rpartition(":")[2]
        return _type_of(from_file(file, attribute, "environment.type"), f"{file.name}:{attribute}")
    place = SHIPPED.get(name) or _entry_points().get(name) or name
    module, colon, attribute = place.partition(":")
    if not colon:
        known = ", ".join([*SHIPPED, *_entry_points()])
        raise ConfigError(
            f"environment.type = {name!r} is unknown; known: {known}; or name a class as my_envs.py:Class or "
            "package.module:Class"
        )
    return _type_of(from_module(module, attribute, "environment.type"), f"{module}:{attribute}")


def import_folder(settings: EnvironmentSettings) -> Path | None:
    """Return the folder that an import of the type's module needs on the path; None if the type has none of its own.

    Engines have other packages, and do not see the `PYTHONPATH` of this process.
    """
    if settings.code_file is not None or settings.type in SHIPPED:
        return None
    module = _entry_points().get(settings.type, settings.type).partition(":")[0]
    return import_folder_of(module)


def _entry_points() -> dict[str, str]:
    return entry_point_places(ENTRY_POINT_GROUP)


@functools.lru_cache(maxsize=64)
def _type_of(found: Any, name: str) -> EnvironmentType:
    return _as_type(found, name)


def _check_methods(environment: type[Environment], name: str) -> None:
    """Raise ConfigError for a method that cannot be called as the engine calls it."""
    for method in ("reset", "step", "outcome", "score", "close"):
        if not inspect.iscoroutinefunction(inspect.unwrap(getattr(environment, method))):
            raise ConfigError(f"environment.type: {name}.{method} must be written with `async def`")
    if not inspect.ismethod(environment.tasks):
        raise ConfigError(f"environment.type: {name}.tasks must be a `@classmethod`")


def _as_type(found: Any, name: str) -> EnvironmentType:
    """Return the type that a class is, or that stands for an environment class."""
    try:
        if isinstance(found, type) and issubclass(found, Environment):
            if found.step is Environment.step:
                raise ConfigError(
                    f"environment.type: {name} has no method step(turn), which reacts to the model's turns"
                )
            _check_methods(found, name)
            return CustomType(found)
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
