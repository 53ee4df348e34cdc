"""Define typed configuration: sections, semantic and operational keys, config files and overrides.

A configuration is one tree of frozen pydantic models. A key is *semantic* (it changes the results, so it is part of a
stage's fingerprint) unless its type is wrapped in `Operational` (URLs, concurrency, connection timeouts). Later sources
override earlier ones: defaults, TOML files in the order given (tables merged, lists replaced), `--set a.b=value`.
Secrets are never part of the configuration: sections name environment variables.
"""

from __future__ import annotations

import difflib
import enum
import hashlib
import itertools
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from typing_extensions import TypeAliasType

from treadle.core.class_settings import attribute_docs
from treadle.core.errors import ConfigError
from treadle.core.untrusted.toml_text import parse_toml

config_folders: ContextVar[tuple[Path, ...]] = ContextVar("config_folders", default=())
"""Folders of the configuration files that are being read; files that a value names may be next to them."""

T = TypeVar("T")
T_Section = TypeVar("T_Section", bound="Section")


class _Mark(enum.Enum):
    """Marks of configuration keys; the annotated types below attach them to a key."""

    OPERATIONAL = enum.auto()
    GROWING = enum.auto()
    REVISABLE = enum.auto()
    COUNTS_IF_SET = enum.auto()


Operational = Annotated[T, _Mark.OPERATIONAL]
"""Type of an operational key: `timeout_s: Operational[float] = 30.0` is not part of fingerprints and may change between
resumes."""

Growing = Annotated[T, _Mark.GROWING]
"""Type of a list or table whose items each belong to separate instances: items of `sigmas: Growing[tuple[float, ...]]`
may be added between resumes (to a list at its end), while existing items stay. See `differing_keys`."""

Revisable = Annotated[T, _Mark.REVISABLE]
"""Type of a revisable section: `judges: Revisable[JudgesOptions]` is semantic, but a run is not locked to it. Results
that depend on it are recomputed if it changes. Use it for settings that affect little more than reports, whose results
are cheap or reuse earlier work."""

CountsIfSet = Annotated[T, _Mark.COUNTS_IF_SET]
"""Type of a key that is no part of fingerprints while it has its default: results from before it existed stay valid."""


class Section(BaseModel):
    """Base class of all configuration sections: unknown keys are errors, values are immutable."""

    # A command needs the validators of few of the hundred sections; each is built at its first use.
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), defer_build=True)

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the description of each key: its field's, or the docstring below it.

        Sources are read on demand, not when a class is made: most processes never show a key.
        """
        docs = attribute_docs(cls)
        return {name: field.description or docs.get(name, "") for name, field in cls.model_fields.items()}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of forms, with the descriptions of the keys."""
        schema = handler(core_schema)
        cls.describe(handler.resolve_ref_schema(schema))
        return schema

    @classmethod
    def describe(cls, schema: JsonSchemaValue) -> None:
        """Add the descriptions of the keys to the JSON schema of the section."""
        properties = schema.get("properties", {})
        for name, text in cls.descriptions().items():
            if text and name in properties:
                properties[name].setdefault("description", text)

    @classmethod
    def variants(cls) -> Sequence[type[Section]]:
        """Return the sections that may be used in place of this one, for messages and the reference."""
        return ()

    def effective(self) -> Self:
        """Return this section with keys that have no effect set to their defaults; fingerprints are made from it."""
        return self

    def as_text(self) -> str | None:
        """Return the text that represents this section, in fingerprints too; None if it has to be a table."""
        return None


def is_operational(field: FieldInfo) -> bool:
    """Return whether a key of a section is operational."""
    return _Mark.OPERATIONAL in field.metadata


def is_revisable(field: FieldInfo) -> bool:
    """Return whether a key may change between resumes although it is semantic."""
    return _Mark.REVISABLE in field.metadata


def is_growing(field: FieldInfo) -> bool:
    """Return whether items may be added to a list or table between resumes."""
    return _Mark.GROWING in field.metadata


def _is_unset(field: FieldInfo, value: Any) -> bool:
    return _Mark.COUNTS_IF_SET in field.metadata and bool(value == field.default)


def semantic_dump(value: Any) -> Any:
    """Convert a section (or a container of sections) to JSON-able data without its operational keys.

    Keys without effect have their defaults (`Section.effective`).
    """
    if isinstance(value, Section) and (text := value.as_text()) is not None:
        return text
    if isinstance(value, BaseModel):
        counted = value.effective() if isinstance(value, Section) else value
        return {
            name: semantic_dump(getattr(counted, name))
            for name, field in type(counted).model_fields.items()
            if not is_operational(field) and not _is_unset(field, getattr(counted, name))
        }
    if isinstance(value, Mapping):
        return {str(key): semantic_dump(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [semantic_dump(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def canonical_json(value: Any) -> bytes:
    """Serialise JSON-able data with sorted keys, so that equal data gives equal bytes."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def digest_json(value: Any) -> str:
    """Return the hex SHA-256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def merge(base: Mapping[str, Any], over: Mapping[str, Any], *, by_type: bool = False) -> dict[str, Any]:
    """Merge two nested tables; `over` wins, lists are replaced as a whole.

    With `by_type`, tables inside that name another `type` are replaced as a whole as well: it has other keys.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            is_other = by_type and "type" in old and value.get("type", old["type"]) != old["type"]
            merged[key] = value if is_other else merge(old, value, by_type=by_type)
        else:
            merged[key] = value
    return merged


def with_preset(presets: Mapping[str, Mapping[str, Any]], data: Any) -> Any:
    """Return the data to validate a section from: the preset it names, overridden by the given keys, tables merged.

    Raises ValueError for an unknown preset, which pydantic reports with the key.
    """
    if not isinstance(data, dict) or data.get("preset") is None:
        return data
    preset = presets.get(data["preset"]) if isinstance(data["preset"], str) else None
    if preset is None:
        raise ValueError(f"unknown preset {data['preset']!r}; known presets: {', '.join(presets)}")
    given = {key: _set_keys(value) if isinstance(value, Section) else value for key, value in data.items()}
    return merge(preset, given, by_type=True)


def _set_keys(section: Section) -> dict[str, Any]:
    """Return the keys that were set, and the type, which a class sets by itself."""
    kind = {"type": section.type} if "type" in type(section).model_fields else {}  # type: ignore[attr-defined]
    return {**kind, **section.model_dump(exclude_unset=True)}


def with_changes(table: Section, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section's data with changes applied: its keys, then a newly named preset, then the changes.

    The result is not yet validated.
    """
    presets: Mapping[str, Mapping[str, Any]] = getattr(type(table), "PRESETS", {})
    name = changes.get("preset")
    preset = presets.get(name, {}) if isinstance(name, str) else {}
    return merge(merge(table.model_dump(mode="json"), preset, by_type=True), changes, by_type=True)


def read_text(path: Path) -> str:
    """Return the text of a configuration file; raise ConfigError naming the file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {path} is not UTF-8 at byte {error.start + 1}; save it as UTF-8") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read one TOML file; raise ConfigError naming the file."""
    try:
        return parse_toml(read_text(path))
    except ValueError as error:
        raise ConfigError(f"config file {path} cannot be used: {error}") from None


def parse_override(text: str) -> dict[str, Any]:
    """Parse one `a.b=value` of `--set`; the value is TOML, or a plain string if it is not valid TOML.

    A quoted part may contain dots, as in `overrides."1/rollouts@base".max_questions=5`.
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {text!r} is not of the form section.key=value")
    # The value as TOML, or else as a plain string.
    for candidate in (f"{key}={value}", f"{key}={orjson.dumps(value).decode()}"):
        try:
            return parse_toml(candidate)
        except tomllib.TOMLDecodeError:
            continue
        except ValueError as error:
            raise ConfigError(f"--set {key.strip()[:80]}: {error}") from None
    raise ConfigError(f"--set {text!r} is not of the form section.key=value")


def load_config(
    schema: type[T_Section],
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    *,
    base: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> T_Section:
    """Build a configuration from `base`, files, `data` and `--set` overrides, later ones winning.

    Raises ConfigError with the path of each wrong key, the file it comes from if there are several, and the closest
    known key for an unknown one.
    """
    given: list[tuple[str, Mapping[str, Any]]] = [("", base or {})]
    given += [(f" (in {path})", read_toml(path)) for path in files]
    given.append(("", data or {}))
    given += [(f" (in --set {text.partition('=')[0]})", parse_override(text)) for text in overrides]
    tree: dict[str, Any] = {}
    for _, part in given:
        tree = merge(tree, part)
    token = config_folders.set(tuple(path.resolve().parent for path in files))
    try:
        return validate(schema, tree, parts=given if len(files) > 1 else ())
    finally:
        config_folders.reset(token)


def validate(
    schema: type[T_Section],
    tree: Mapping[str, Any],
    where: str = "",
    parts: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> T_Section:
    """Validate a mapping against a section; raise ConfigError with one sentence per wrong key.

    `parts` are (label, mapping) of the sources that were merged into `tree`. A message about a wrong key ends with the
    label of the last source that contains the key.
    """
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [_explain(schema, detail, where) + _origin(detail["loc"], parts) for detail in details]
        raise ConfigError("; ".join(dict.fromkeys(problems))) from None


def unknown_keys(schema: type[BaseModel], error: ValidationError) -> str:
    """Return one sentence per unknown key; empty if the error has another cause."""
    details = error.errors(include_url=False)
    return "; ".join(_explain(schema, detail, "") for detail in details if detail["type"] == "extra_forbidden")


def _origin(place: Sequence[int | str], parts: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the label of the source that a wrong key comes from; empty if several sources contribute to its table."""
    reached = [(*_walk(part, place), label) for label, part in parts]
    deepest = max((depth for depth, _, _ in reached), default=0)
    found = [(value, label) for depth, value, label in reached if depth == deepest > 0]
    merged = len(found) > 1 and isinstance(found[-1][0], Mapping)
    return found[-1][1] if found and not merged else ""


def _walk(tree: Any, place: Sequence[int | str]) -> tuple[int, Any]:
    """Return how many keys of a path exist in a tree, and the value at the last of them."""
    for depth, step in enumerate(place):
        if not isinstance(tree, Mapping) or step not in tree:
            return depth, tree
        tree = tree[step]
    return len(place), tree


def _explain(schema: type[BaseModel], detail: Any, where: str) -> str:
    loc = [str(part) for part in detail["loc"]]
    name = ".".join([where, *loc] if where else loc)
    if detail["type"] == "extra_forbidden":
        known = _keys_at(schema, loc[:-1])
        near = difflib.get_close_matches(loc[-1], known, n=1, cutoff=0.5)
        if loc[-1] in known:
            return f"unknown config key {name!r}; it is a key of another type: set `type` of this table"
        hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(sorted(known))}"
        return f"unknown config key {name!r}{hint}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"config key {name!r}: {message}" if name else message


def _keys_at(schema: Any, path: Sequence[str]) -> list[str]:
    """Return the names of the allowed keys in the table at `path`, for all members of a union."""
    models = [schema]
    for part in path:
        models = [inner for model in models for inner in _step(model, part)]
    return sorted({name for model in models if _is_model(model) for name in model.model_fields})


def _step(annotation: Any, part: str) -> list[Any]:
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        # In a location, the tag of a union takes the place of a field name.
        return _flatten(field.annotation) if field else [annotation]
    arguments = [argument for argument in typing.get_args(annotation) if argument is not ...]
    return _flatten(arguments[-1]) if arguments else []


def _flatten(annotation: Any) -> list[Any]:
    if isinstance(annotation, TypeAliasType):
        return _flatten(annotation.__value__)
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _flatten(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [inner for argument in typing.get_args(annotation) for inner in _flatten(argument)]
    if _is_model(annotation) and issubclass(annotation, Section):
        return [annotation, *annotation.variants()]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def differing_keys(old: Any, new: Any, schema: type[BaseModel] | None = None) -> list[str]:
    """Return `path: old -> new` for each difference between two JSON-able trees; empty if they are equal.

    With their schema, items added to a growing list or table are not differences, and revisable keys are skipped.
    """
    return _differences(old, new, "", [] if schema is None else [schema])


def _differences(old: Any, new: Any, path: str, kinds: Sequence[Any]) -> list[str]:
    """Compare two values as `differing_keys` does; `kinds` are the annotations that may apply, empty if unknown."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [line for key in sorted({*old, *new}) for line in _differences_at(key, old, new, path, kinds)]
    if isinstance(old, list) and isinstance(new, list) and (len(old) == len(new) or _are_tables([*old, *new])):
        below = [inner for kind in kinds for inner in _step(kind, "")]
        pairs = enumerate(itertools.zip_longest(old, new))
        return [line for place, (was, now) in pairs for line in _differences(was, now, f"{path}[{place}]", below)]
    return [] if old == new else [f"{path}: {_shown(old)} -> {_shown(new)}"]


def _are_tables(items: Sequence[Any]) -> bool:
    return all(isinstance(item, Mapping) for item in items)


def _shown(value: Any) -> str:
    """Return a value for a message; of a table, only the keys with values."""
    if isinstance(value, Mapping):
        value = {key: inner for key, inner in value.items() if inner not in (None, "", [], {})}
    return repr(value)


def _differences_at(key: str, old: Any, new: Any, path: str, kinds: Sequence[Any]) -> list[str]:
    models = [kind for kind in kinds if _is_model(kind) and key in kind.model_fields]
    fields = [model.model_fields[key] for model in models]
    if fields and all(map(is_revisable, fields)):
        return []
    was, now = old.get(key), new.get(key)
    if any(is_growing(field) for field in fields):
        was, now = _without_gain(was, now)
    containers = [kind for kind in kinds if not _is_model(kind)]
    below = [inner for kind in (*models, *containers) for inner in _step(kind, key)]
    return _differences(was, now, f"{path}.{key}" if path else str(key), below)


def _without_gain(was: Any, now: Any) -> tuple[Any, Any]:
    """Return both values of a growing list or table, reduced to the items that must be equal in both."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        # Items that are not used any more may be omitted; items in both must be equal.
        both = was.keys() & now.keys()
        return {key: was[key] for key in both}, {key: now[key] for key in both}
    return was, now[: len(was)] if isinstance(was, list) and isinstance(now, list) else now
