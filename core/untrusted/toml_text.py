"""Parse untrusted TOML, and report what the standard parser or later code cannot handle in one line."""

from __future__ import annotations

import math
import tomllib
from typing import Any

MAX_DEPTH = 32
"""Maximum nesting of tables and arrays; the deepest key of Treadle's configuration is at 8."""
_INT64 = range(-(2**63), 2**63)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML, skipping a byte order mark.

    Raises ValueError with a message for users: TOMLDecodeError for invalid TOML, otherwise for values nested deeper
    than MAX_DEPTH, integers beyond 64 bits, and numbers that are infinite or not a number.
    """
    try:
        tree = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise tomllib.TOMLDecodeError(f"not valid TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"values are nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:  # Raised for too many digits of an integer, which tomllib does not catch
        raise ValueError("a number has too many digits; integers are limited to 64 bits") from None
    _check(tree)
    return tree


def _check(tree: dict[str, Any]) -> None:
    waiting: list[tuple[str, Any, int]] = [(key, value, 1) for key, value in tree.items()]
    while waiting:
        name, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"values are nested deeper than {MAX_DEPTH} levels, below {name[:80]}")
        if isinstance(value, dict):
            waiting += [(f"{name}.{key}", item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(name, item, depth + 1) for item in value]
        elif isinstance(value, int) and value not in _INT64:
            raise ValueError(f"{name[:80]} has an integer of more than 64 bits")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name[:80]} is {value}; numbers must be finite")
