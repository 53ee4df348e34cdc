"""How a report over several iterations tells apart models of one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treadle.core.stage import Address


def label_prefixes(tables: Sequence[tuple[Address, str]]) -> list[str | None]:
    """What stands before a model's name in the report, for each table of scores; None for one that is there already.

    Tables are given in their order, each by the instance of `scores` that it is of and by its digest. A model whose
    scores are the same in all iterations is there once, under its name; one that has several is told by the iteration:
    `1/tuned`, `2/tuned`.
    """
    if len({address.iteration for address, _ in tables}) < 2:
        return [""] * len(tables)
    seen = [(address.qualifier, digest) for address, digest in tables]
    num_versions = Counter(model for model, _ in set(seen))
    return [
        None if one in seen[:place] else f"{address.iteration}/" if num_versions[address.qualifier] > 1 else ""
        for place, (one, (address, _)) in enumerate(zip(seen, tables, strict=True))
    ]
