"""Read the tests of LiveCodeBench's rows, and write one file per problem."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import DataError
from treadle.core.store.exported import new_folder, write_facts
from treadle.core.untrusted.input_files import read_rows

_MAX_BYTES = 256 * 1024**2
"""Most bytes that a field with packed tests may decompress to."""
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_CASES = ("public_test_cases", "private_test_cases")


def write_tests(source: Path, target: Path, *, replace: bool = False) -> int:
    """Write `<target>/<question_id>.json` for each row of a LiveCodeBench file; return their number.

    Raises DataError, naming the row, for tests that cannot be read and for an id that occurs twice or is no file name.
    """
    seen: set[str] = set()
    with new_folder(target, replace=replace) as folder:
        for row in read_rows(source):
            try:
                if row.value is None:
                    raise DataError(row.detail)
                found = problem_tests(row.value)
            except DataError as error:
                raise DataError(f"{source}, row {row.number}: {error}") from None
            name = found["question_id"]
            if name in seen:
                raise DataError(f"{source}, row {row.number}: question_id {name!r} is that of an earlier row")
            seen.add(name)
            (folder / f"{name}.json").write_bytes(orjson.dumps(found))
        write_facts(folder, {"kind": "tests", "format": "livecodebench", "num_problems": len(seen)})
    return len(seen)


def problem_tests(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tests of a row: `{stdin, expected_output}` or `{inputs, outputs, fn_name}`, with its question_id.

    Raises DataError.
    """
    name = str(fields.get("question_id") or "")
    if not _ID.fullmatch(name):
        raise DataError(f"question_id {name[:60]!r} is missing or no name of a file")
    cases = [case for field in _CASES for case in _cases(fields.get(field), field)]
    if not cases:
        raise DataError("it has no tests in public_test_cases or private_test_cases")
    kinds = {case.get("testtype") for case in cases}
    inputs, outputs = ([case.get(key) for case in cases] for key in ("input", "output"))
    if not all(isinstance(text, str) for text in (*inputs, *outputs)):
        raise DataError("a test has no input or output")
    if kinds == {"stdin"}:
        return {"question_id": name, "stdin": inputs, "expected_output": outputs}
    function = _object(fields.get("metadata"), "metadata").get("func_name")
    if kinds != {"functional"} or not isinstance(function, str):
        raise DataError(f"its tests are of the types {sorted(map(str, kinds))}, or metadata.func_name is missing")
    return {"question_id": name, "inputs": inputs, "outputs": outputs, "fn_name": function}


def _cases(value: Any, field: str) -> list[Mapping[str, Any]]:
    if value in (None, ""):
        return []
    found = _parsed(value if not isinstance(value, str) or value.lstrip().startswith("[") else _unpacked(value, field))
    if not isinstance(found, list) or not all(isinstance(case, Mapping) for case in found):
        raise DataError(f"{field} is no list of tests")
    return found


def _object(value: Any, field: str) -> Mapping[str, Any]:
    found = _parsed(value) if value is not None else {}
    if not isinstance(found, Mapping):
        raise DataError(f"{field} is no object")
    return found


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise DataError(f"its tests are no JSON: {type(error).__name__}") from None


class _TextUnpickler(pickle.Unpickler):
    """Reader of a pickled text; anything that needs code is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def _unpacked(text: str, field: str) -> str:
    """Return the JSON text in LiveCodeBench's packed form: a pickled text, compressed with zlib, in base64."""
    try:
        decompress = zlib.decompressobj()
        packed = decompress.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
        if decompress.unconsumed_tail:
            raise DataError(f"{field} unpacks to more than {_MAX_BYTES:,} bytes")
        found = _TextUnpickler(io.BytesIO(packed)).load()
    except (binascii.Error, zlib.error, pickle.UnpicklingError, ValueError, EOFError, IndexError, KeyError) as error:
        raise DataError(f"{field} cannot be unpacked: {type(error).__name__}") from None
    if not isinstance(found, str):
        raise DataError(f"{field} unpacks to a value of type {type(found).__name__}, not text")
    return found
