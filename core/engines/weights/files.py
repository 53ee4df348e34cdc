"""List the files of a model's folder that hold its weights, as transformers chooses them when it loads the model.

The folder may contain other sets of weights, such as Mistral's `consolidated.safetensors`: they are for other programs.
"""

from __future__ import annotations

import json
from pathlib import Path

SAFETENSORS = "model.safetensors"
PYTORCH = "pytorch_model.bin"
"""Older format, used if there are no safetensors."""
_MAX_NAME_CHARS = 255


def weight_files(folder: Path, single: str = SAFETENSORS) -> tuple[str, ...]:
    """Return the names of the weight files of one format: the `single` one if it exists, else those in its index.

    Empty if there is neither; a file that an index lists may be missing. Raise ValueError if the index is damaged, or
    lists anything but files of this format in the folder itself.
    """
    if (folder / single).is_file():
        return (single,)
    index = folder / f"{single}.index.json"
    if not index.is_file():
        return ()
    content = json.loads(index.read_text(encoding="utf-8"))
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{index.name} has no weight_map")
    names = list(places.values())
    for name in names:
        if not isinstance(name, str) or not _is_plain(name) or not name.endswith(Path(single).suffix):
            raise ValueError(f"{index.name} lists {str(name)[:80]!r}, which is not a weight file in the same folder")
    return tuple(sorted(set(names)))


def _is_plain(name: str) -> bool:
    """Return whether a name stays in its folder, and matches only itself as a pattern."""
    return (
        name == Path(name).name and name.isprintable() and not set(name) & set("*?[]\\") and len(name) < _MAX_NAME_CHARS
    )
