"""Read the runs of a page: records, and the tables that are still readable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from treadle.core.errors import ArtifactError, StorageError
from treadle.core.figures import Figures
from treadle.core.runs.address import Address
from treadle.core.runs.records import InputRef, StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.artifacts import ArtifactRef
from treadle.report.page.document import Chart, Fold, Paragraph, Part
from treadle.stages.report import telemetry_rows
from treadle.tasks.summaries.report_tables import maker_of

Row = dict[str, Any]

_ARTIFACT_FOLDER = re.compile(r"^artifacts/\w+/[0-9a-f]+ (holds table)")
"""Folder of a table in the message why it cannot be read; removed, so that equal reasons have equal messages."""


class PageRun:
    """One run of a page. What cannot be read is left out and listed in `notes()`."""

    def __init__(self, run: Run, label: str = "") -> None:
        """Read the run's records; `label` distinguishes it from other runs of the page, empty for a single run."""
        self.run = run
        self.label = label
        records, problems = run.readable_records()
        self.records: list[StageRecord] = sorted(records, key=_age)
        self._problems: dict[str, list[str]] = {}
        for key, problem in problems.items():
            self._note(key, problem)

    def named(self, text: str) -> str:
        """Append the run's label to a title or model name, if it has one."""
        return f"{text} · {self.label}" if self.label else text

    def named_parts(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts of a page with titles that name the run, if it has a label."""
        return [self._named_part(part) for part in parts]

    def _named_part(self, part: Part) -> Part:
        match part:
            case Figures() | Chart():
                return replace(part, title=self.named(part.title))
            case Fold():
                return replace(part, summary=self.named(part.summary))
            case Paragraph() if self.label:
                return Paragraph(f"{self.label}: {part.text}")
        return part

    def of_stage(self, *stages: str) -> list[StageRecord]:
        """Return the records of stages, by iteration, phase and name."""
        return [record for record in self.records if record.stage in stages]

    def by_time(self) -> list[StageRecord]:
        """Return all records in the order in which they were made."""
        return sorted(self.records, key=lambda record: (record.started_at, record.address))

    def table(self, ref: ArtifactRef | None, what: str) -> ArtifactReader | None:
        """Return a table; None if there is none or it cannot be read. `what` names it in the note."""
        if ref is None:
            return None
        try:
            return self.run.rows(ref)
        except (ArtifactError, StorageError) as error:
            self._note(what, error)
            return None

    def rows(self, ref: ArtifactRef | None, what: str, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """Yield all rows of a table; no row if any part of the table cannot be read."""
        table = self.table(ref, what)
        if table is None:
            return
        try:
            batches = list(table.batches(columns))
        except (ArtifactError, StorageError) as error:
            self._note(what, error)
            return
        for batch in batches:
            yield from batch.to_pylist()

    def each_row(self, ref: ArtifactRef | None, what: str, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the rows of a large table, a batch in memory at a time, until a part of it cannot be read."""
        table = self.table(ref, what)
        if table is None:
            return
        try:
            for batch in table.batches(columns):
                yield from batch.to_pylist()
        except (ArtifactError, StorageError) as error:
            self._note(what, error)

    def maker(self, given: InputRef) -> StageRecord | None:
        """Return the record that made an input; None if it has been replaced since or cannot be read."""
        return maker_of(given, self.records)

    def file(self, record: StageRecord, kind: str, name: str) -> bytes | None:
        """Return the content of a file in an artifact of the record; None if there is none or it cannot be read."""
        table = self.table(record.outputs.get(kind), record.address)
        if table is None or name not in table.file_names():
            return None
        try:
            return table.read_file(name)
        except (ArtifactError, StorageError) as error:
            self._note(record.address, error)
            return None

    def telemetry(self, record: StageRecord, kind: str) -> list[Row]:
        """Return the rows of a telemetry log; empty if it no longer exists or cannot be read."""
        import pyarrow as pa

        try:
            return telemetry_rows(record, self.run, kind)
        except (pa.ArrowException, OSError):
            self._note(record.address, f"{record.telemetry[kind]} cannot be read")
        except StorageError as error:
            self._note(record.address, error)
        return []

    def notes(self) -> list[str]:
        """Return a note for each reason why tables are not shown, with the tables."""
        run = f" ({self.label})" if self.label else ""
        return [f"Not shown of {', '.join(what)}{run}: {reason}" for reason, what in self._problems.items()]

    def _note(self, what: str, error: Exception | str) -> None:
        reason = _ARTIFACT_FOLDER.sub(r"\1", str(error))
        known = self._problems.setdefault(reason, [])
        if what not in known:
            known.append(what)


def _age(record: StageRecord) -> tuple[int, int, str]:
    """Return the key by which records are sorted: iteration, phase, name."""
    address = Address.parse(record.address)
    phase = (address.qualifier or "").rpartition("-")[2]
    return address.iteration, int(phase) if phase.isdecimal() else 0, record.address
