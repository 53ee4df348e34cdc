"""Typed configuration: sections, the split into semantic and operational keys, files and overrides.

A configuration is one tree of frozen pydantic models. Every key is *semantic* (it changes what comes out, so it is
part of a stage's fingerprint) unless its type is wrapped in `Operational` (URLs, concurrency, connection time-outs).
Sources, later ones win: defaults, TOML files in the order given (tables merged, lists replaced), `--set a.b=value`.
Secrets are never configuration: sections name environment variables.
"""

from __future__ import annotations

import difflib
import hashlib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from treadle.core.errors import ConfigError

T = TypeVar("T")
T_Section = TypeVar("T_Section", bound="Section")


class _OperationalMarker:
    """Marks a field whose value does not change what a stage produces."""


OPERATIONAL = _OperationalMarker()
Operational = Annotated[T, OPERATIONAL]
"""`timeout_s: Operational[float] = 30.0` keeps the key out of fingerprints; such a key may change between resumes."""


class _GrowingMarker:
    """Marks a list or table of which each item belongs to instances of its own; see `differing_keys`."""


GROWING = _GrowingMarker()
Growing = Annotated[T, GROWING]
"""`sigmas: Growing[tuple[float, ...]]`: items may be added between resumes (to a list at its end), and those there are
stay."""


class _RevisableMarker:
    """Marks a section that a run may change its mind about; see `differing_keys`."""


REVISABLE = _RevisableMarker()
Revisable = Annotated[T, REVISABLE]
"""`judges: Revisable[JudgesOptions]`: semantic, but no run is locked to it. With other values what it decides is made
again, so it is for what costs little beside the rest of a run, and that nothing but a report is made of."""


class _AddedMarker:
    """Marks a key that older runs do not have."""


ADDED = _AddedMarker()
Added = Annotated[T, ADDED]
"""`names: Added[dict[str, str]] = {}`: the key is in fingerprints only where it differs from its default, so that what
was made before there was such a key stays valid."""


class Section(BaseModel):
    """Base of every configuration section: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())

    def effective(self) -> Self:
        """This section with keys that mean nothing beside the others at their defaults; what fingerprints are of."""
        return self


def is_operational(field: FieldInfo) -> bool:
    """Whether a key of a section is operational."""
    return any(isinstance(item, _OperationalMarker) for item in field.metadata)


def is_revisable(field: FieldInfo) -> bool:
    """Whether a run may go on with another value of a key."""
    return any(isinstance(item, _RevisableMarker) for item in field.metadata)


def is_growing(field: FieldInfo) -> bool:
    """Whether items may be added to a list or table between resumes."""
    return any(isinstance(item, _GrowingMarker) for item in field.metadata)


def _is_absent(field: FieldInfo, value: Any) -> bool:
    return any(isinstance(item, _AddedMarker) for item in field.metadata) and bool(value == field.get_default())


def semantic_dump(value: Any) -> Any:
    """Turn a section (or a container of sections) into JSON-able data without its operational keys.

    Keys that mean nothing have their defaults (`Section.effective`); an added key is left out while it has its own.
    """
    if isinstance(value, BaseModel):
        counted = value.effective() if isinstance(value, Section) else value
        return {
            name: semantic_dump(getattr(counted, name))
            for name, field in type(counted).model_fields.items()
            if not is_operational(field) and not _is_absent(field, getattr(counted, name))
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
    """Hex SHA-256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested tables; `over` wins, lists are replaced as a whole."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def with_preset(presets: Mapping[str, Mapping[str, Any]], data: Any) -> Any:
    """What a section is validated from: the preset that its data name with the given keys on top, tables merged.

    Raises ValueError, which pydantic tells with the key, for an unknown one.
    """
    if not isinstance(data, dict) or data.get("preset") is None:
        return data
    preset = presets.get(data["preset"]) if isinstance(data["preset"], str) else None
    if preset is None:
        raise ValueError(f"unknown preset {data['preset']!r}; known presets: {', '.join(presets)}")
    given = {
        key: value.model_dump(exclude_unset=True) if isinstance(value, Section) else value
        for key, value in data.items()
    }
    return merge(preset, given)


def with_changes(table: Section, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a table becomes, still to be validated: its keys, those of a preset that the changes name, the changes."""
    presets: Mapping[str, Mapping[str, Any]] = getattr(type(table), "PRESETS", {})
    name = changes.get("preset")
    preset = presets.get(name, {}) if isinstance(name, str) else {}
    return merge(merge(table.model_dump(mode="json"), preset), changes)


def read_text(path: Path) -> str:
    """Text of a configuration file; raises ConfigError naming it."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {path} is not UTF-8 at byte {error.start + 1}; save it as UTF-8") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read one TOML file; raises ConfigError naming the file."""
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}") from None


def parse_override(text: str) -> dict[str, Any]:
    """Parse one `a.b=value` of `--set`; the value is TOML, or a plain string where it is not valid TOML.

    A quoted part may hold dots, as in `overrides."1/rollouts@base".max_questions=5`.
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {text!r} is not of the form section.key=value")
    for candidate in (f"{key}={value}", f"{key}={orjson.dumps(value).decode()}"):
        try:
            return tomllib.loads(candidate)
        except tomllib.TOMLDecodeError:
            continue
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

    Raises ConfigError, which names each wrong key with its place, of several files that which has it and, for an
    unknown one, the nearest known key.
    """
    given: list[tuple[str, Mapping[str, Any]]] = [("", base or {})]
    given += [(f" (in {path})", read_toml(path)) for path in files]
    given.append(("", data or {}))
    given += [(f" (in --set {text.partition('=')[0]})", parse_override(text)) for text in overrides]
    tree: dict[str, Any] = {}
    for _, part in given:
        tree = merge(tree, part)
    return validate(schema, tree, parts=given if len(files) > 1 else ())


def validate(
    schema: type[T_Section],
    tree: Mapping[str, Any],
    where: str = "",
    parts: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> T_Section:
    """Validate a mapping against a section; raises ConfigError with one sentence per wrong key.

    `parts` are what the mapping was merged from, later ones winning, with what is to be said of a wrong key in each.
    """
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [_explain(schema, detail, where) + _origin(detail["loc"], parts) for detail in details]
        raise ConfigError("; ".join(dict.fromkeys(problems))) from None


def _origin(place: Sequence[int | str], parts: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """What is to be said of the part that has most of the way to a key; nothing where several share its table."""
    reached = [(*_walk(part, place), label) for label, part in parts]
    deepest = max((depth for depth, _, _ in reached), default=0)
    found = [(value, label) for depth, value, label in reached if depth == deepest > 0]
    merged = len(found) > 1 and isinstance(found[-1][0], Mapping)
    return found[-1][1] if found and not merged else ""


def _walk(tree: Any, place: Sequence[int | str]) -> tuple[int, Any]:
    """How many steps of a way through tables there are in a tree, and what lies at the last of them."""
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
        hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(sorted(known))}"
        return f"unknown config key {name!r}{hint}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"config key {name!r}: {message}" if name else message


def _keys_at(schema: Any, path: Sequence[str]) -> list[str]:
    """Names of the keys that are allowed in the table at `path` (union members are searched in turn)."""
    models = [schema]
    for part in path:
        models = [inner for model in models for inner in _step(model, part)]
    return sorted({name for model in models if _is_model(model) for name in model.model_fields})


def _step(annotation: Any, part: str) -> list[Any]:
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        # A union's tag stands in the location where a field name would.
        return _flatten(field.annotation) if field else [annotation]
    arguments = [argument for argument in typing.get_args(annotation) if argument is not ...]
    return _flatten(arguments[-1]) if arguments else []


def _flatten(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _flatten(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [inner for argument in typing.get_args(annotation) for inner in _flatten(argument)]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def differing_keys(old: Any, new: Any, schema: type[BaseModel] | None = None) -> list[str]:
    """Dotted paths with `old -> new`, for two JSON-able trees; empty where they are equal.

    With their schema, what a growing list or table has gained is no difference, and neither is a revisable section;
    operational keys are passed over, which were semantic ones in what is older.
    """
    return _differences(old, new, "", [] if schema is None else [schema])


def _differences(old: Any, new: Any, path: str, kinds: Sequence[Any]) -> list[str]:
    """As `differing_keys`; `kinds` are the annotations that both may go by, none where they are not known."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [line for key in sorted({*old, *new}) for line in _differences_at(key, old, new, path, kinds)]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        below = [inner for kind in kinds for inner in _step(kind, "")]
        pairs = enumerate(zip(old, new, strict=True))
        return [line for place, (was, now) in pairs for line in _differences(was, now, f"{path}[{place}]", below)]
    return [] if old == new else [f"{path}: {old!r} -> {new!r}"]


def _differences_at(key: str, old: Any, new: Any, path: str, kinds: Sequence[Any]) -> list[str]:
    models = [kind for kind in kinds if _is_model(kind) and key in kind.model_fields]
    fields = [model.model_fields[key] for model in models]
    if fields and all(is_operational(field) or is_revisable(field) for field in fields):
        return []
    was, now = old.get(key), new.get(key)
    if any(is_growing(field) for field in fields):
        was, now = _without_gain(was, now)
    containers = [kind for kind in kinds if not _is_model(kind)]
    below = [inner for kind in (*models, *containers) for inner in _step(kind, key)]
    return _differences(was, now, f"{path}.{key}" if path else str(key), below)


def _without_gain(was: Any, now: Any) -> tuple[Any, Any]:
    """Both states of a growing list or table, as far as they can contradict each other."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        # What no longer has a use needs no mention; what is named again is what it was.
        both = was.keys() & now.keys()
        return {key: was[key] for key in both}, {key: now[key] for key in both}
    if isinstance(was, Mapping):
        # Some runs have a table of a list, from the places in it (`[0]`) to its items.
        was = list(was.values())
    return was, now[: len(was)] if isinstance(was, list) and isinstance(now, list) else now
