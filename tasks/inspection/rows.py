"""Finding single rows among the tables of a run, without reading more of them than has to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from treadle.core.artifact_reader import ArtifactReader
from treadle.core.errors import DataError
from treadle.core.runs import Run
from treadle.core.stage import Address
from treadle.core.taken_over import own_results

Key = tuple[str, str]
"""Kind of table, and its column that identifies."""


def full_key(run: Run, places: Sequence[Key], prefix: str, what: str, iteration: int | None = None) -> tuple[str, str]:
    """The kind of table and the one key that is this, or else begins so, in any of the places, of one iteration or all.

    Raises DataError where there is none, and where there are several. Reads only the keys.
    """
    import pyarrow.compute as pc

    found: dict[str, str] = {}
    for kind, column in places:
        for _, table in tables(run, kind, iteration):
            for batch in table.matching(column, lambda values: pc.starts_with(values, prefix), [column]):
                found.update(dict.fromkeys(batch[column].to_pylist(), kind))
    if prefix in found:
        return found[prefix], prefix
    if not found:
        raise DataError(
            f"no {what} begins with {prefix!r} in this run; `treadle lineage` also finds questions, and "
            "`treadle status` lists what is finished"
        )
    if len(found) > 1:
        raise DataError(f"{prefix!r} is the beginning of {len(found):,} keys; give more of it, as {min(found)}")
    ((key, kind),) = found.items()
    return kind, key


def rows_with(
    run: Run,
    kind: str,
    column: str,
    value: str,
    columns: Sequence[str] | None = None,
    *,
    iteration: int | None = None,
) -> Iterator[tuple[Address, dict[str, Any]]]:
    """Rows of all tables of a kind, or of those of one iteration, with this value, as a stream; with these columns, or
    all."""
    import pyarrow.compute as pc

    for address, table in tables(run, kind, iteration):
        for batch in table.matching(column, lambda values: pc.equal(values, value), columns):
            for row in batch.to_pylist():
                yield address, row


def tables(run: Run, kind: str, iteration: int | None = None) -> Iterator[tuple[Address, ArtifactReader]]:
    """All tables of a kind, each with the first instance that has it, or those of one iteration, the taken over too."""
    records = run.records()
    for record in own_results(records) if iteration is None else records:
        address = Address.parse(record.address)
        if iteration in (None, address.iteration) and kind in record.outputs:
            yield address, run.rows(record.outputs[kind])
