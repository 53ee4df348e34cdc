"""Store records as JSON files with a digest, and check format version and digest when reading them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from treadle.core.config import digest_json
from treadle.core.errors import RunError
from treadle.core.runs.records import FORMAT, StoredRecord
from treadle.core.store.roots import Storage

T_Record = TypeVar("T_Record", bound=StoredRecord)

_DIGEST = "digest"


def json_round_trip(value: Mapping[str, Any]) -> Any:
    """Convert a value as if written to JSON and read back, so that tuples and paths compare equal to stored ones."""
    return orjson.loads(orjson.dumps(value, default=str))


def as_json(value: BaseModel | dict[str, Any], exclude: set[str] | None = None) -> bytes:
    """Return the content of the file, with a digest if it is a stored record; `exclude` are keys to leave out."""
    data = value.model_dump(mode="json", exclude=exclude) if isinstance(value, BaseModel) else value
    if isinstance(value, StoredRecord):
        data = _with_digest(json_round_trip(data))
    return orjson.dumps(data, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def load_record(storage: Storage, key: str, model: type[T_Record]) -> T_Record | None:
    """Read a record, or return None if the file does not exist.

    Raises RunError if the record cannot be read, has another format version, or was changed after it was written.
    """
    content = storage.get(key)
    return None if content is None else parse_record(content, key, model)


def parse_record(content: bytes, key: str, model: type[T_Record]) -> T_Record:
    """Parse the content of a record's file, which `key` names in errors; raise RunError as `load_record` does."""
    # The format first, because a file of another one may well lack keys of this one.
    _check_format(content, key)
    try:
        loaded = model.model_validate_json(content)
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(str(part) for part in detail["loc"])
        problem = f"{where}: {detail['msg']}" if where else detail["msg"]
        raise RunError(f"{key} cannot be read ({problem}); restore it or delete it") from None
    if not _is_unchanged(orjson.loads(content)):
        raise RunError(
            f"{key} has changed since it was written; restore it or delete it (if you changed it on purpose, remove "
            'its "digest")'
        )
    return loaded


def _check_format(content: bytes, key: str) -> None:
    """Raise RunError for a record of another format or without one; leave other problems to the validation."""
    try:
        data = orjson.loads(content)
    except orjson.JSONDecodeError:
        return
    if isinstance(data, dict) and (found := data.get("format")) != FORMAT:
        has = "no format" if found is None else f"format {found!r}"
        raise RunError(f"{key} has {has}; this Treadle reads format {FORMAT}: use the version that wrote it")


def _with_digest(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON-able content of a stored record with the digest of its other keys."""
    return {**data, _DIGEST: digest_json({key: value for key, value in data.items() if key != _DIGEST})}


def _is_unchanged(data: Mapping[str, Any]) -> bool:
    """Return whether a stored record is unchanged; also true if its digest was removed to change it on purpose."""
    return _DIGEST not in data or _with_digest(data) == data
