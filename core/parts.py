"""Store named numbers, such as the parts of a grade, in one column: their names are data, and no table lists them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

PARTS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))
"""Type of a column of parts."""


def parts_cell(parts: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return the value of a column of parts, sorted by name, without parts that have no finite value."""
    return [
        {"name": name, "value": float(value)}
        for name, value in sorted(parts.items())
        if value is not None and math.isfinite(value)
    ]
