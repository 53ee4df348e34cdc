"""Records as files: written as JSON with a digest of the rest, and read with their version and that digest checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from treadle.core.config import digest_json
from treadle.core.errors import RunError
from treadle.core.records import FORMAT, StoredRecord
from treadle.core.storage import Storage

T_Record = TypeVar("T_Record", bound=StoredRecord)

_DIGEST = "digest"


def as_read_back(value: Mapping[str, Any]) -> Any:
    """As it reads back from a file, so that tuples and paths compare equal to what was stored."""
    return orjson.loads(orjson.dumps(value, default=str))


def as_json(value: BaseModel | dict[str, Any], exclude: set[str] | None = None) -> bytes:
    """Content of the file; that of a stored record has a digest of itself. `exclude`: keys to leave out."""
    data = value.model_dump(mode="json", exclude=exclude) if isinstance(value, BaseModel) else value
    if isinstance(value, StoredRecord):
        data = _sealed(as_read_back(data))
    return orjson.dumps(data, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def load_record(storage: Storage, key: str, model: type[T_Record]) -> T_Record | None:
    """A record, or None where there is no such file.

    Raises RunError for one that cannot be read, is of another version, or is not what was written.
    """
    content = storage.get(key)
    return None if content is None else parse_record(content, key, model)


def parse_record(content: bytes, key: str, model: type[T_Record]) -> T_Record:
    """The record that a file holds, which `key` names in errors; raises RunError as `load_record` does."""
    try:
        loaded = model.model_validate_json(content)
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(str(part) for part in detail["loc"])
        problem = f"{where}: {detail['msg']}" if where else detail["msg"]
        raise RunError(f"{key} cannot be read ({problem}); restore it or delete it") from None
    if loaded.format != FORMAT:
        raise RunError(
            f"{key} has format {loaded.format}; this Treadle reads format {FORMAT}: use the version that wrote it"
        )
    if not _is_unchanged(orjson.loads(content)):
        raise RunError(
            f"{key} has changed since it was written; restore it or delete it (if you changed it yourself and mean it: "
            'take out its "digest")'
        )
    return loaded


def _sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a stored record, JSON-able, with the digest of all the rest of it."""
    return {**data, _DIGEST: digest_json({key: value for key, value in data.items() if key != _DIGEST})}


def _is_unchanged(data: Mapping[str, Any]) -> bool:
    """Whether a stored record still is what was written; also where it has no digest, as earlier versions wrote it."""
    return _DIGEST not in data or _sealed(data) == data
