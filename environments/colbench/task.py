"""Read the hidden payload of a programming task: the reference program and the calls that test an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.agent.tools.workspace.files import BadTask

MAX_TESTS = 1_000
_CALLED = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*\(")


@dataclass(frozen=True, slots=True)
class ProgramTask:
    """Hidden part of a task.

    Attributes:
        reference: Text of the reference program, in Python.
        tests: Name of a test -> call expression, which must return the same with an answer as with the reference.
    """

    reference: str
    tests: Mapping[str, str]

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> ProgramTask:
        """Read the fields `reference` and `tests` of a payload. Raises BadTask, which quotes nothing of them."""
        reference, tests = payload.get("reference"), payload.get("tests")
        if not isinstance(reference, str) or not reference.strip():
            raise BadTask("reference is no text")
        if not isinstance(tests, Mapping):
            raise BadTask("tests is no object with a call for each name")
        # In Parquet the objects of all rows have the same fields; fields that a row lacks are null.
        given = {name: call for name, call in tests.items() if call is not None}
        if not given or len(given) > MAX_TESTS:
            raise BadTask(f"tests has {len(given)} calls; 1 to {MAX_TESTS:,} are possible")
        if not all(isinstance(call, str) and call.strip() for call in given.values()):
            raise BadTask("tests has a call that is no text")
        return cls(reference, given)

    @property
    def function(self) -> str:
        """Name of the function that the first test calls; empty if this test does not begin with `name(`."""
        found = _CALLED.match(next(iter(self.tests.values())))
        return found[1] if found else ""


def hidden_sentence(payload: Mapping[str, Any]) -> str:
    """Return the sentence that states the reference as the final answer. Raises BadTask."""
    reference = ProgramTask.of(payload).reference.strip("\n")
    return f"The final answer of this task is the following Python program:\n```python\n{reference}\n```"
