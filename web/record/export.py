"""Write the web record of a run as an artifact, for replay by other runs."""

from __future__ import annotations

from treadle.core.errors import RunError
from treadle.core.runs.run import Run
from treadle.core.store.artifacts import ArtifactRef
from treadle.web.record.facts import RecordFacts
from treadle.web.record.stored_entries import WEB_STORE, entries_of
from treadle.web.record.table import write_record


def export_record(run: Run) -> tuple[ArtifactRef, RecordFacts]:
    """Write what a run has recorded so far; return the artifact and its counts. Raise RunError if it has no record."""
    store, facts = run.store(WEB_STORE), RecordFacts()
    if next(store.keys(), None) is None:
        raise RunError(
            f"run {run.run_id} has no web record; runs record if environment.search.web is set with a mode "
            "other than replay"
        )
    entries = ((facts.counted(entry), None) for entry in entries_of(store))
    return write_record(run.storage, entries, made_by=f"export of run {run.run_id}"), facts
