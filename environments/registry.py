"""Find types of environments by name: shipped ones, entry points, classes in a file or a module."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler, SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from treadle.core.config import config_folders
from treadle.core.errors import ConfigError
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
    file = _code_file(name, given.get("code_file"))
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
        return _type_in_file(file, name.rpartition(":")[2], file.stat().st_mtime_ns)
    place = SHIPPED.get(name) or _entry_points().get(name) or name
    module, colon, attribute = place.partition(":")
    if not colon:
        known = ", ".join([*SHIPPED, *_entry_points()])
        raise ConfigError(
            f"environment.type = {name!r} is unknown; known: {known}; or name a class as my_envs.py:Class or "
            "package.module:Class"
        )
    return _type_in_module(module, attribute)


def import_folder(settings: EnvironmentSettings) -> Path | None:
    """Return the folder that an import of the type's module needs on the path; None if the type has none of its own.

    Engines have other packages, and do not see the `PYTHONPATH` of this process.
    """
    if settings.code_file is not None or settings.type in SHIPPED:
        return None
    module = _entry_points().get(settings.type, settings.type).partition(":")[0]
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin).parent if spec.origin else None


def _entry_points() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}


def _code_file(name: str, known: object) -> Path | None:
    """Return the file of a type that is named by its file: the known one, or the one next to the configuration."""
    place, colon, _ = name.rpartition(":")
    if not colon or not place.endswith(".py"):
        return None
    folders = (Path.cwd(), *config_folders.get())
    candidates = [Path(str(known))] if known else [folder / place for folder in folders]
    for path in candidates:
        if path.is_file():
            return path.resolve()
    moved = "; if it was moved, set environment.code_file to its place" if known else ""
    raise ValueError(f"type = {name!r}: there is no file {' or '.join(map(str, candidates))}{moved}")


@functools.lru_cache(maxsize=64)
def _type_in_file(file: Path, attribute: str, changed_ns: int) -> EnvironmentType:
    """Return the type of a class in a file; a changed file is read again."""
    spec = importlib.util.spec_from_file_location(f"treadle_own_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"environment.type: {file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # any error that a user's file raises
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and (file.parent / f"{error.name}.py").is_file():
            other = f"{file.stem}:{attribute}"
            what += f'; a file cannot import its neighbours: set type = "{other}", with the folder on PYTHONPATH'
        raise ConfigError(f"environment.type: {attribute} in {file} cannot be loaded: {what}") from error
    if not hasattr(module, attribute):
        there = [name for name, one in vars(module).items() if getattr(one, "__module__", None) == module.__name__]
        raise ConfigError(
            f"environment.type: there is no {attribute} in {file}; there: {', '.join(there) or 'nothing'}"
        )
    return _as_type(getattr(module, attribute), f"{file.name}:{attribute}")


@functools.lru_cache(maxsize=64)
def _type_in_module(module: str, attribute: str) -> EnvironmentType:
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # any error that a user's module raises on import
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            what += "; put its folder on PYTHONPATH"
        raise ConfigError(f"environment.type: {module}:{attribute} cannot be loaded: {what}") from error
    return _as_type(found, f"{module}:{attribute}")


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
