"""Write settings as lines of TOML for a configuration file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def toml_lines(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield `key = value` for every leaf of a tree, with dotted keys; None values are left out: TOML has no null."""
    for key, value in tree.items():
        name = f"{prefix}.{_key(key)}" if prefix else _key(key)
        if isinstance(value, Mapping) and value:
            yield from toml_lines(value, name)
        elif value is not None:
            yield f"{name} = {toml_value(value)}"


def toml_value(value: Any) -> str:
    """Return a JSON-able value as TOML on one line; tables become inline tables."""
    if isinstance(value, str):
        # JSON has the same escapes, but does not escape control characters from DEL onwards.
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {toml_value(one)}" for key, one in value.items() if one is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(toml_value(one) for one in value if one is not None)}]"
    return repr(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)
