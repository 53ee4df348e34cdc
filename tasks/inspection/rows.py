"""Find single rows in the tables of a run, without reading more than necessary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from treadle.core.errors import DataError
from treadle.core.runs.address import Address
from treadle.core.runs.reused import own_results
from treadle.core.runs.run import Run
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.text_arrays import one_of
from treadle.environments.stored_settings import type_names

Key = tuple[str, str]
"""Kind of a table, and the column with its key."""


def full_key(run: Run, places: Sequence[Key], prefix: str, what: str, iteration: int | None = None) -> tuple[str, str]:
    """Return the kind of table and the full key for a key or unique prefix, searching all `places`.

    Searches one iteration or, by default, all; reads only key columns. Raises DataError if no key or several keys
    match.
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
        raise DataError(f"{prefix!r} is the prefix of {len(found):,} keys; give a longer one, such as {min(found)}")
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
    """Yield the rows of all tables of a kind whose `column` equals `value`; by default with all that are not hidden.

    With `iteration`, only tables of that iteration are searched.
    """
    for address, table in tables(run, kind, iteration):
        for batch in table.matching(column, one_of([value]), columns):
            for row in batch.to_pylist():
                yield address, row


def tables(run: Run, kind: str, iteration: int | None = None) -> Iterator[tuple[Address, ArtifactReader]]:
    """Yield all tables of a kind, each with the first instance that has it.

    With `iteration`, yield the tables of that iteration, including those reused from earlier ones.
    """
    records = run.records()
    for record in own_results(records) if iteration is None else records:
        address = Address.parse(record.address)
        if iteration in (None, address.iteration) and kind in record.outputs:
            yield address, run.rows(record.outputs[kind])


def environment_type_of(run: Run, address: Address, name: str) -> str:
    """Return the type of an instance's environment by its name; the name itself if it has no such environment."""
    record = run.record(address)
    return type_names(record.settings if record is not None else None).get(name, name)
