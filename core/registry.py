"""Find the entries of a registry by name, with typed settings.

An entry is a class of settings with the method that does its work. Shipped entries have a name; those of users are a
class in a file next to the configuration, in a module, or behind an entry point. Documented in docs/guides/own.md.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import GetJsonSchemaHandler, ValidationError, ValidatorFunctionWrapHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from treadle.core.config import Operational, Section, unknown_keys
from treadle.core.errors import ConfigError, TreadleError, closest
from treadle.core.plugins import entry_point_places, find_code_file, from_file, from_module, import_folder_of
from treadle.core.untrusted.input_files import file_sha256

_log = logging.getLogger(__name__)

SectionType = type[Section]

_PART = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")
_MAX_PARTS = 64


class Entry(Section):
    """Settings of an entry of a registry: its type, and the file of its code."""

    type: str
    """Type of the entry: a shipped one, `my_file.py:Class` for a class in a file next to the configuration,
    `package.module:Class`, or the name of an entry point."""
    code_file: Operational[Path | None] = None
    """File with the class, for a type that is in a file; filled in when the configuration is read."""
    code_sha256: str = ""
    """Digest of that file; filled in when the configuration is read, so that results follow its edits."""

    @classmethod
    def variants(cls) -> Sequence[SectionType]:
        """Return the settings of the types that are loaded."""
        below = cls.__subclasses__()
        return [*below, *(variant for one in below for variant in one.variants())]


T_Entry = TypeVar("T_Entry", bound=Entry)


@dataclass(frozen=True, eq=False)
class Registry(Generic[T_Entry]):
    """The entries of one kind. As metadata of an annotation, it provides each type's keys to forms and the reference.

    Attributes:
        base: Class that the settings of all entries derive from.
        key: Configuration key whose `type` names an entry, for errors.
        group: Group of entry points; the name of an entry point is the name of the type.
        example: Type of a user, such as `my_tools.py:weather`, for errors.
        shipped: Name -> `module:Class`.
        methods: Name -> call of the methods that a class must have, such as `{"rank": "rank(candidates)"}`.
        settings_of: Function from the object that a name refers to, and its place, to the class of its settings. Raises
            ConfigError. None: the class itself.
    """

    base: type[T_Entry]
    key: str
    group: str
    example: str
    shipped: Mapping[str, str]
    methods: Mapping[str, str] = field(default_factory=dict)
    settings_of: Callable[[Any, str], type[T_Entry]] | None = None

    def known(self) -> list[str]:
        """Return the names of shipped types and entry points."""
        return list(dict.fromkeys([*self.shipped, *entry_point_places(self.group)]))

    def find(self, name: str, file: Path | None = None) -> tuple[Any, str]:
        """Return the object that a type's name refers to, and its place; `file` is the code file of a class in a file.

        Raises ConfigError, listing the known names.
        """
        if file is not None:
            attribute = name.rpartition(":")[2]
            return from_file(file, attribute, f"{self.key}.type"), f"{file.name}:{attribute}"
        points = entry_point_places(self.group)
        if name in points and name in self.shipped:
            raise ConfigError(
                f"{self.key}.type: {name!r} is a shipped type, and {points[name]} is an entry point of that name in "
                f"{self.group}; rename the entry point, or uninstall its package"
            )
        place = self.shipped.get(name) or points.get(name) or name
        module, colon, attribute = place.partition(":")
        if not colon and name not in points:
            raise ConfigError(
                f"{self.key}.type = {name!r} is unknown{closest(name, self.known())}; known: "
                f"{', '.join(self.known())}; or name your own as "
                f"{self.example} or package.module:{self.example.rpartition(':')[2]}"
            )
        return from_module(module, attribute, f"{self.key}.type"), place

    def settings(self, name: str, file: Path | None = None) -> type[T_Entry]:
        """Return the class of a type's settings. Raises ConfigError."""
        found, place = self.find(name, file)
        if self.settings_of is not None:
            found = self.settings_of(found, place)
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise ConfigError(f"{self.key}.type: {place} is not derived from treadle.api.{self.base.__name__}")
        own: type[T_Entry] = found
        for method, call in self.methods.items():
            if getattr(own, method) is getattr(self.base, method):
                raise ConfigError(f"{self.key}.type: {place} has no method {call}")
        _check_parts(getattr(own, "PARTS", {}), f"{self.key}.type: {place}.PARTS")
        return own

    def shipped_settings(self) -> list[type[T_Entry]]:
        """Return the settings of all shipped types, for the reference."""
        return [self.settings(name) for name in self.shipped]

    def parse(self, data: Any) -> T_Entry:
        """Return settings from the data of a configuration, or of a dump; a string is the type. Raises ValueError."""
        if isinstance(data, self.base):
            return data
        if isinstance(data, str):
            data = {"type": data}
        default = self.base.model_fields["type"].default
        name = data.get("type", default) if isinstance(data, Mapping) else None
        if not isinstance(name, str):
            raise ValueError(
                f'a key `type` is needed, such as {{ type = "{self.example}" }}; known: {", ".join(self.known())}'
            )
        # The digest is that of the current file, whatever was stored.
        given = {key: value for key, value in data.items() if key != "code_sha256"} | {"type": name}
        file = find_code_file(name, given.get("code_file"))
        if file is not None:
            given |= {"code_file": file, "code_sha256": file_sha256(file)}
        elif given.get("code_file"):
            raise ValueError(f"code_file belongs to a type in a file, and type = {name!r} is none; leave it out")
        try:
            settings = self.settings(name, file)
        except ConfigError as error:
            # The message names the registry's key, but these settings may be in a table elsewhere.
            raise ValueError(str(error).removeprefix(f"{self.key}.type: ").removeprefix(f"{self.key}.")) from None
        try:
            return settings.model_validate(given)
        except ValidationError as error:
            # Without a default type, unknown keys can be found only here, where the type is known.
            if not isinstance(default, str) and (unknown := unknown_keys(settings, error)):
                raise ValueError(unknown) from None
            raise
        except TreadleError:
            raise
        except (Exception, SystemExit) as error:  # any error that a user's class raises
            raise ValueError(f"{name} cannot be made from its keys: {type(error).__name__}: {error}") from error

    def validate(self, data: Any, handler: ValidatorFunctionWrapHandler) -> T_Entry:
        """Validate a field; for `pydantic.WrapValidator`."""
        return self.parse(data)

    def import_folder(self, settings: Entry) -> Path | None:
        """Return the folder that an import of a type's module needs on the path; None if it needs no such folder.

        Engines have other packages, and do not see the `PYTHONPATH` of this process.
        """
        if settings.code_file is not None or settings.type in self.shipped:
            return None
        return import_folder_of(entry_point_places(self.group).get(settings.type, settings.type).partition(":")[0])

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the keys of every named type, and any keys for a class named by its place; Prefect's form shows it.

        A type may be given as a text in place of its table. No class is loaded that only a configuration names.
        """
        default = self.base.model_fields["type"].default
        variants = []
        for name in self.known():
            try:
                settings = self.settings(name)
            except ConfigError as error:
                _log.warning("the keys of %s are left out: %s", self.key, error)
                continue
            variant = _own_schema(settings, handler)
            variant["properties"]["type"] |= {"const": name, "default": name}
            variants.append(variant | {"title": name, "required": [] if name == default else ["type"]})
        of_place = _own_schema(self.base, handler)
        of_place["properties"]["type"].pop("default", None)
        of_place["properties"]["type"]["pattern"] = ":"
        more = {"title": "class in a file or module", "required": ["type"], "additionalProperties": True}
        return {"anyOf": [*variants, of_place | more, {"title": "type alone", "type": "string"}]}


def edited_code(dumped: Any, loaded: Any) -> Path | None:
    """Return a file with code that was edited between the dump of a section and its loading; None if there is none.

    Loading takes the current code, but results are filed under the digest in the dump.
    """
    pairs: list[tuple[Any, Any]] = []
    if isinstance(loaded, Section) and isinstance(dumped, Mapping):
        if isinstance(loaded, Entry) and dumped.get("code_sha256", "") != loaded.code_sha256:
            return loaded.code_file
        pairs = [(dumped.get(name), getattr(loaded, name)) for name in type(loaded).model_fields]
    elif isinstance(loaded, Mapping) and isinstance(dumped, Mapping):
        pairs = [(dumped.get(name), one) for name, one in loaded.items()]
    return next((file for pair in pairs if (file := edited_code(*pair)) is not None), None)


def _check_parts(parts: object, where: str) -> None:
    """Raise ConfigError unless the declared parts of a class are a dict of names with one line of text each."""
    if not isinstance(parts, Mapping) or len(parts) > _MAX_PARTS:
        raise ConfigError(f"{where} must be a dict with at most {_MAX_PARTS} names")
    for part, line in parts.items():
        if not (isinstance(part, str) and _PART.fullmatch(part) and isinstance(line, str) and "\n" not in line):
            raise ConfigError(
                f"{where}: {str(part)[:60]!r} must be a name of letters, digits and _ with one line of text"
            )


def _own_schema(settings: type[Section], handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """Return a copy of a section's schema, which the caller may change."""
    schema = copy.deepcopy(handler.resolve_ref_schema(handler(settings.__pydantic_core_schema__)))
    settings.describe(schema)
    return schema
