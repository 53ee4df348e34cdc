"""Show the outcomes of the tests that decided about an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

_MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ShownTest:
    """One test. `call` and `expected` are hidden from the agent; pages that show the agent's view leave them out."""

    name: str
    passed: bool
    error: str
    got: str
    call: str
    expected: str


def shown_tests(score: Mapping[str, Any] | None) -> list[ShownTest]:
    """Return the tests in the column `detail` of a row of `scores`, the failed ones first; empty without any."""
    detail = orjson.loads((score or {}).get("detail") or "[]")
    rows = [one for one in detail if _is_test(one)] if isinstance(detail, list) else []
    tests = [
        ShownTest(
            _text(one, "name"), one["passed"], *(_text(one, name) for name in ("error", "got", "call", "expected"))
        )
        for one in rows[:_MAX_SHOWN]
    ]
    return sorted(tests, key=lambda test: test.passed)


def _is_test(one: object) -> bool:
    return isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("passed"), bool)


def _text(one: Mapping[str, Any], name: str) -> str:
    value = one.get(name)
    return "" if value is None else str(value)
