"""Compare two runs: configuration, software, digests of the results, counts, and figures of the reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from treadle.core.errors import ArtifactError, RunError, StorageError
from treadle.core.runs.address import Address, phase_of
from treadle.core.runs.records import StageRecord
from treadle.core.runs.reused import result_origin
from treadle.core.runs.run import Run
from treadle.report.tables import SUMMARY
from treadle.stages.registry import stage_entries
from treadle.tasks.planning.run_setup import known_addresses

DiffVerdict = Literal["same", "changed", "only first", "only second"]


@dataclass(frozen=True, slots=True)
class Change:
    """A value, by its dotted name, that differs between two runs; None in a run without it."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class TableChange:
    """Comparison of a table that a stage instance wrote."""

    kind: str
    first_rows: int | None
    """Number of rows in the first run; None if it has no such table."""
    second_rows: int | None
    is_same: bool
    """True if the digests are equal, that is, both tables have the same content."""


@dataclass(frozen=True, slots=True)
class InstanceDiff:
    """Differences between the results at one address."""

    address: str
    verdict: DiffVerdict
    tables: tuple[TableChange, ...]
    settings: tuple[Change, ...]
    inputs: tuple[str, ...]
    """Addresses of the instances whose tables differ between the inputs of the two results."""
    metrics: tuple[Change, ...]
    reused_from: tuple[str, str] = ("", "")
    """For each run, the earlier iteration that the result was reused from; empty if it was not reused."""


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure of a report that differs between two runs."""

    address: str
    model: str
    dataset: str
    figure: str
    first: float | None
    second: float | None

    @property
    def difference(self) -> float | None:
        """Second minus first; None if one has no value."""
        return None if self.first is None or self.second is None else self.second - self.first


@dataclass(slots=True)
class RunDiff:
    """All differences between two runs."""

    first: str
    second: str
    config: list[Change] = field(default_factory=list)
    unused_config: list[Change] = field(default_factory=list)
    """Differing keys of tables whose stage is in neither run's flow and has a result in neither."""
    software: list[Change] = field(default_factory=list)
    instances: list[InstanceDiff] = field(default_factory=list)
    """All addresses, including identical ones."""
    figures: list[FigureChange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Messages about what could not be compared, and why."""


def run_diff(first: Run, second: Run) -> RunDiff:
    """Compare two runs of one root or of two; raise RunError for a damaged configuration.

    Records and tables that cannot be read are listed in `notes`.
    """
    diff = RunDiff(first.run_id, second.run_id)
    diff.software = list(_changes(_software(first), _software(second)))
    one, other = (_records(run, diff.notes) for run in (first, second))
    idle = _unused_tables((first, one), (second, other))
    for change in _changes(first.config(), second.config()):
        (diff.unused_config if change.name.partition(".")[0] in idle else diff.config).append(change)
    for address in _in_order((first, second), {*one, *other}):
        item = _instance(address, one.get(address), other.get(address))
        diff.instances.append(replace(item, reused_from=(_reused_from(address, one), _reused_from(address, other))))
        if address in one and address in other:
            diff.figures += _figures(address, (first, one[address]), (second, other[address]), diff.notes)
    return diff


def _unused_tables(*runs: tuple[Run, Mapping[str, StageRecord]]) -> set[str]:
    """Return the configuration tables that no stage of these runs reads; empty if a run's flow is unknown."""
    used: set[Address] = set()
    for run, records in runs:
        flow = known_addresses(run)
        if not flow:
            return set()
        used.update(flow, map(Address.parse, records))
    stages = {address.stage for address in used}
    entries = stage_entries()
    by_phase = {name for name, entry in entries.items() if entry.qualifiers == ("phase",)}
    has_phases = bool(stages & by_phase) or any(phase_of(address.qualifier) for address in used)
    with_table = {name for name, entry in entries.items() if entry.table is not None}
    return (with_table - stages) | (set() if has_phases else {"curriculum"})


def _in_order(runs: Iterable[Run], addresses: Iterable[str]) -> list[str]:
    """Return addresses in flow order, by iteration; those in no flow come last, by stage, phase and name."""
    flows = sorted((known_addresses(run) for run in runs), key=len, reverse=True)
    ranks = {str(address): rank for rank, address in enumerate(dict.fromkeys(chain(*flows)))}

    def place(text: str) -> tuple[int, int, str, int, str]:
        address = Address.parse(text)
        phase = phase_of(address.qualifier) or 0
        return address.iteration, ranks.get(text, len(ranks)), address.stage, phase, address.qualifier or ""

    return sorted(addresses, key=place)


def _reused_from(address: str, records: Mapping[str, StageRecord]) -> str:
    record = records.get(address)
    return result_origin(record, lambda earlier: records.get(str(earlier))) if record is not None else ""


def _software(run: Run) -> dict[str, Any]:
    return {"treadle": run.info.treadle_version, "git": run.info.git, "packages": run.info.packages}


def _records(run: Run, notes: list[str]) -> dict[str, StageRecord]:
    records, problems = run.readable_records()
    notes += [f"{run.run_id}: {problem}" for problem in problems.values()]
    return {record.address: record for record in records}


def _instance(address: str, first: StageRecord | None, second: StageRecord | None) -> InstanceDiff:
    ours, theirs = (record.outputs if record is not None else {} for record in (first, second))
    tables = tuple(
        TableChange(
            kind,
            ours[kind].num_rows if kind in ours else None,
            theirs[kind].num_rows if kind in theirs else None,
            kind in ours and kind in theirs and ours[kind].digest == theirs[kind].digest,
        )
        for kind in (*ours, *(kind for kind in theirs if kind not in ours))
    )
    if first is None or second is None:
        return InstanceDiff(address, "only second" if first is None else "only first", tables, (), (), ())
    verdict: DiffVerdict = "same" if all(table.is_same for table in tables) else "changed"
    settings = tuple(
        _changes({"version": first.version, "": first.settings}, {"version": second.version, "": second.settings})
    )
    return InstanceDiff(
        address,
        verdict,
        tables,
        settings,
        tuple(_inputs(first, second)),
        tuple(_changes(first.metrics, second.metrics)),
    )


def _inputs(first: StageRecord, second: StageRecord) -> Iterator[str]:
    ours, theirs = (
        {(ref.address, ref.artifact.kind): ref.artifact.digest for refs in record.inputs.values() for ref in refs}
        for record in (first, second)
    )
    found = {key: None for key in (*ours, *theirs) if ours.get(key) != theirs.get(key)}
    yield from dict.fromkeys(address for address, _ in found)


def _figures(
    address: str, first: tuple[Run, StageRecord], second: tuple[Run, StageRecord], notes: list[str]
) -> Iterator[FigureChange]:
    digests = {record.outputs[SUMMARY.kind].digest for _, record in (first, second) if SUMMARY.kind in record.outputs}
    if len(digests) < 2:
        return
    tables = []
    for run, record in (first, second):
        try:
            rows = run.rows(record.outputs[SUMMARY.kind]).rows(("model", "dataset", "figure", "value"))
            tables.append({(row["model"], row["dataset"], row["figure"]): row["value"] for row in rows})
        except (ArtifactError, RunError, StorageError) as error:
            notes.append(f"{run.run_id}: {error}")
            return
    ours, theirs = tables
    for key in (*ours, *(key for key in theirs if key not in ours)):
        if ours.get(key) != theirs.get(key):
            yield FigureChange(address, *key, ours.get(key), theirs.get(key))


_ABSENT = object()


def _changes(first: Any, second: Any, path: str = "") -> Iterator[Change]:
    """Yield the leaves of JSON-able data that differ; lists of different lengths are compared as one leaf."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in (*first, *(key for key in second if key not in first)):
            below = f"{path}.{key}" if path and key else path or str(key)
            yield from _changes(first.get(key, _ABSENT), second.get(key, _ABSENT), below)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for place, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _changes(one, other, f"{path}[{place}]")
    elif first != second:
        yield Change(path, None if first is _ABSENT else first, None if second is _ABSENT else second)
