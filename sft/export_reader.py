"""Read exports of fine-tuning rows back, as the conversations of the exported `sft_rows`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import ConfigError
from treadle.core.store.exported import EXPORT_FILE
from treadle.sft.llamafactory_rows import read_sharegpt
from treadle.sft.openai_rows import read_openai
from treadle.sft.row_text import RowText

_READERS: Mapping[str, Callable[[Mapping[str, Any]], RowText]] = {"openai": read_openai, "sharegpt": read_sharegpt}


def read_export(folder: Path) -> Iterator[RowText]:
    """Yield the conversations of an export in format `openai` or `sharegpt`, in its order.

    Raises ConfigError if the folder is no such export, or if a line, which the error names, cannot be read.
    """
    try:
        name = orjson.loads((folder / EXPORT_FILE).read_bytes())["format"]
        reader = _READERS[name]
        file = (folder / f"{name}.jsonl").open("rb")
    except (OSError, ValueError, TypeError, KeyError):
        raise ConfigError(f"{folder} is no export of sft_rows in format {' or '.join(_READERS)}") from None
    with file:
        for number, line in enumerate(file, 1):
            try:
                yield reader(orjson.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ConfigError(f"{file.name}, line {number} is no row of {name}: {error!r}") from None
