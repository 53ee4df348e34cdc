"""Label models that have the same name in several iterations of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treadle.core.runs.address import Address


def label_prefixes(tables: Sequence[tuple[Address, str]]) -> list[str | None]:
    """Return the prefix of the model's name for each table of scores; None for a table that duplicates an earlier one.

    Each table is given by its `scores` instance and its digest. A model whose scores are the same in all iterations
    appears once, without a prefix. A model with several versions gets its iteration as prefix: `1/tuned`, `2/tuned`.
    """
    if len({address.iteration for address, _ in tables}) < 2:
        return [""] * len(tables)
    seen = [(address.qualifier, digest) for address, digest in tables]
    num_versions = Counter(model for model, _ in set(seen))
    return [
        None if one in seen[:place] else f"{address.iteration}/" if num_versions[address.qualifier] > 1 else ""
        for place, (one, (address, _)) in enumerate(zip(seen, tables, strict=True))
    ]
