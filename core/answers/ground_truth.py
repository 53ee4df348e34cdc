"""Encode and decode `reward_model.ground_truth`, the field of rows for verl that defines what is right.

It is the only place that reads or writes the field. Rows hold it as text or as an object; Treadle writes text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TESTS = ("stdin", "functional", "inputs", "test_code")
"""Fields of an object that holds tests of a program; any one of them identifies such an object."""
_EXPECTED = {"stdin": "expected_output", "inputs": "outputs"}
_ID = "question_id"


class BadGroundTruth(ValueError):
    """Ground truth in no known form."""


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """A decoded ground truth.

    Attributes:
        answers: Accepted answers, as the row has them; empty if tests decide.
        question: The question; empty if the field does not repeat it.
        tests: Tests of a program by their published names, or None.
    """

    answers: tuple[Any, ...] = ()
    question: str = ""
    tests: Mapping[str, Any] | None = None

    @property
    def question_id(self) -> str:
        """Id of tests that are stored outside the row; empty without one."""
        return str((self.tests or {}).get(_ID) or "")


def decode(value: Any) -> GroundTruth:
    """Decode a ground truth.

    Forms: `{target: [answers], question}`; tests of a program, `{stdin, expected_output, question_id}`, `{functional,
    question_id}`, `{inputs, outputs, fn_name}` or `{import_prefix, test_code, entry_point}`; a list of answers; each of
    them also as JSON text; one answer, which may be any other text; or null. Raises BadGroundTruth for other objects.
    """
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, Mapping):
        return _of_object(value)
    if value is None:
        return GroundTruth()
    return GroundTruth(tuple(value) if isinstance(value, list | tuple) else (value,))


def encode(truth: GroundTruth) -> str:
    """Return a ground truth as JSON text with sorted keys: an object, so that it is not mistaken for an answer."""
    if truth.tests is not None:
        return json.dumps(truth.tests, ensure_ascii=False, sort_keys=True)
    found = {"question": truth.question, "target": list(truth.answers)}
    return json.dumps(found, ensure_ascii=False, sort_keys=True)


def _parsed(text: str) -> Any:
    """Return an object or a list of strings in a JSON text; the text itself if it is an answer, such as an interval."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, list):
        return value if all(isinstance(item, str) for item in value) else text
    return value if isinstance(value, Mapping) and _is_known(value) else text


def _is_known(value: Mapping[str, Any]) -> bool:
    return "target" in value or any(value.get(name) is not None for name in TESTS)


def _of_object(value: Mapping[str, Any]) -> GroundTruth:
    if "target" in value:
        target = value["target"]
        answers = tuple(target) if isinstance(target, list | tuple) else (target,)
        question = value.get("question")
        return GroundTruth(answers, question if isinstance(question, str) else "")
    if not _is_known(value):
        names = ", ".join(repr(str(name)[:40]) for name in list(value)[:8]) or "no fields"
        raise BadGroundTruth(f"the ground truth is an object with {names}; it needs target, or tests of a program")
    # Columns of parquet have all fields of all rows: absent ones are null.
    tests = {name: part for name, part in value.items() if part is not None}
    for inputs, outputs in _EXPECTED.items():
        if inputs in tests and _length(tests[inputs]) != _length(tests.get(outputs)):
            raise BadGroundTruth(f"the tests have {inputs!r} and {outputs!r} of different lengths")
    return GroundTruth(tests=tests)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else 1 if value is not None else 0
