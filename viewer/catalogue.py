"""List the finished trajectories of a run, and reload when another instance finishes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.reused import own_results
from treadle.core.runs.run import Run
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.artifacts import ArtifactRef
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY, ROLLOUTS
from treadle.environments.stored_settings import type_names
from treadle.viewer.index import Index
from treadle.viewer.problems import ProblemReader, RunProblems
from treadle.viewer.search import TextSearch
from treadle.viewer.tables import KeyedTable, RowGroupCache, StoredTable, collect_problem, read_log
from treadle.viewer.trajectories import KINDS, LOGGED, InstancePart, JoinedTables, QuestionTables, facts_of

_SHOWN_CHARS = 400
_JOINED: Mapping[str, tuple[str, ...]] = {
    "scores": ("rollout_key", "correct", "score"),
    "judgements": ("question_key",),  # Not keyed by rollout: one judgement covers all rollouts with the same answer.
    "sft_rows": ("rollout_key",),
    "sft_rejections": ("rollout_key", "reason"),
}
"""Kind of table -> the column by which its rows are looked up, and the columns that the list needs."""


class OpenRun(Run):
    """A run at one moment. Its tables stay open, so that each file is hashed once."""

    def __init__(self, run: Run, records: Sequence[StageRecord], before: OpenRun | None) -> None:
        """Open the run. Readers of `before`, an earlier state, are reused for artifacts that still exist."""
        super().__init__(run.storage, run.info)
        self._records = list(records)
        folders = {ref.folder for record in records for ref in record.outputs.values()}
        opened: dict[str, ArtifactReader] = dict(before._readers) if before is not None else {}
        self._readers: dict[str, ArtifactReader] = {
            folder: reader for folder, reader in opened.items() if folder in folders
        }

    def records(self) -> list[StageRecord]:
        """Return the records as in `Run.records`."""
        return self._records

    def rows(self, ref: ArtifactRef) -> ArtifactReader:
        """Return a reader as in `Run.rows`."""
        if ref.folder not in self._readers:
            self._readers[ref.folder] = super().rows(ref)
        return self._readers[ref.folder]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is finished at one moment."""

    run: OpenRun
    parts: dict[str, InstancePart]
    index: Index
    questions: QuestionTables
    unfinished: list[tuple[str, str]]
    """Started but unfinished instances, with their state."""
    wrong: RunProblems
    """Likely problems of rollouts and scores."""
    problems: list[str]
    """Error messages of tables that cannot be read."""


class Catalogue:
    """Finished trajectories of a run. Thread-safe."""

    def __init__(self, run: Run, *, refresh_s: float) -> None:
        """Prepare the catalogue. `refresh_s`: seconds before the run's records are listed again."""
        self._run = run
        self._refresh_s = refresh_s
        self._lock = threading.Lock()
        self._groups = RowGroupCache()
        self._search = TextSearch()
        self._wrong = ProblemReader()
        self._refreshed_at = 0.0
        self._state: object = None
        self._snapshot: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """Return the current snapshot. Raise StorageError if the run cannot be read."""
        with self._lock:
            now = time.monotonic()
            if self._snapshot is None or now - self._refreshed_at >= self._refresh_s:
                self._refreshed_at = now
                self._refresh()
            assert self._snapshot is not None
            return self._snapshot

    def _refresh(self) -> None:
        records, damaged = self._run.readable_records()
        unfinished = self._unfinished(records)
        state = ([(record.address, record.outputs, record.reused_from) for record in records], damaged, unfinished)
        if state == self._state and self._snapshot is not None:
            return
        problems: list[str] = []
        run = OpenRun(self._run, records, self._snapshot.run if self._snapshot is not None else None)
        parts = [part for record in own_results(records) for part in self._parts_of(run, record, problems)]
        questions = self._questions(run, problems)
        index = Index(
            [part.facts for part in parts],
            [part.instance for part in parts],
            lambda text: self._search.mask(parts, questions, index, text),
        )
        by_instance = {part.instance: part for part in parts}
        all_problems = list(dict.fromkeys([*damaged.values(), *problems]))
        # Uses its own readers: those of `run` should verify a file only when a trajectory of it is first shown.
        wrong = self._wrong.problems(records, self._run)
        self._snapshot = Snapshot(run, by_instance, index, questions, unfinished, wrong, all_problems)
        self._state = None if problems else state  # With problems, read the tables again at the next refresh.

    def _unfinished(self, records: Sequence[StageRecord]) -> list[tuple[str, str]]:
        finished = {record.address for record in records}
        prefix = self._run.key("attempts") + "/"
        begun = {"/".join(key.removeprefix(prefix).split("/")[:2]) for key in self._run.storage.keys(prefix[:-1])}
        found: list[tuple[str, str]] = []
        for address in sorted(begun - finished):
            with contextlib.suppress(ConfigError):  # Skip files that are not attempts of an instance.
                state = self._run.status(Address.parse(address)).state
                # An instance that has completed since the records were read is shown at the next refresh.
                found += [(address, state)] if state != "completed" else []
        return found

    def _parts_of(self, run: OpenRun, record: StageRecord, problems: list[str]) -> list[InstancePart]:
        found = []
        for name in KINDS.keys() & record.outputs.keys():
            ref, tables = record.outputs[name], {}
            for kind in _JOINED:
                with collect_problem(problems):
                    tables[kind] = self._joined(run, ref, name, kind)
            with collect_problem(problems):
                found.append(self._part(run, record, name, ref, JoinedTables(**tables), problems))
        return found

    def _joined(self, run: OpenRun, ref: ArtifactRef, name: str, kind: str) -> KeyedTable | None:
        """Return the table of a kind that was made from these trajectories, or None."""
        for record in run.records():
            made_from = [one.artifact.digest for one in record.inputs.get(name, ())]
            if kind in record.outputs and ref.digest in made_from:
                return self._keyed(run, record.outputs[kind], *_JOINED[kind])
        return None

    def _keyed(self, run: OpenRun, ref: ArtifactRef, key: str, *columns: str) -> KeyedTable:
        return KeyedTable(run.rows(ref), key, self._groups, columns)

    def _part(
        self,
        run: OpenRun,
        record: StageRecord,
        name: str,
        ref: ArtifactRef,
        joined: JoinedTables,
        problems: list[str],
    ) -> InstancePart:
        instance = record.address
        kind, table = KINDS[name], StoredTable(run.rows(ref), self._groups)
        before = self._snapshot.parts.get(instance) if self._snapshot is not None else None
        if before is not None and before.digests == (ref.digest, *joined.digests):
            return before
        log = None
        with collect_problem(problems):
            log = read_log(run.storage, record, ROLLOUT_TELEMETRY.kind, LOGGED) if name == ROLLOUTS.kind else None
        facts = facts_of(kind, table.columns(kind.columns), instance, joined, log)
        return InstancePart(instance, type_names(record.settings), name, kind, table, facts, joined)

    def _questions(self, run: OpenRun, problems: list[str]) -> QuestionTables:
        tables: list[KeyedTable] = []
        previews: dict[str, str] = {}
        for record in run.records():
            if "questions" in record.outputs:
                with collect_problem(problems):
                    table = self._keyed(run, record.outputs["questions"], "question_key", "question")
                    tables.append(table)
                    texts = pc.utf8_slice_codeunits(table.facts["question"], 0, _SHOWN_CHARS)
                    previews |= zip(table.keys.to_pylist(), texts.to_pylist(), strict=True)
        return QuestionTables(tables, previews)
