"""Select likely problems of rollouts and scores for the list and for the pages of trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.core.runs.records import StageRecord
from treadle.core.runs.reused import own_results, result_origin
from treadle.core.runs.run import Run
from treadle.environments.diagnosis.diagnosis import Diagnosis
from treadle.environments.diagnosis.reading import diagnoses_of
from treadle.viewer.selection import Selection

_MAX_SHOWN = 12


@dataclass(frozen=True, slots=True)
class ShownProblem:
    """A problem, with the instance under which the viewer shows its rollouts."""

    instance: str
    diagnosis: Diagnosis

    @property
    def of_instance(self) -> Selection:
        """Selection that shows all trajectories of the instance."""
        return Selection().toggled("instance", self.instance)


@dataclass(frozen=True, slots=True)
class RunProblems:
    """All problems of a run."""

    problems: Sequence[ShownProblem]

    def listed(self, selection: Selection) -> list[ShownProblem]:
        """Return the first problems of the instances and data sets that a selection lists."""
        instances, datasets = (selection.filters.get(name, frozenset()) for name in ("instance", "dataset"))
        return [
            one
            for one in self.problems
            if (not instances or one.instance in instances)
            and (not datasets or not one.diagnosis.dataset or one.diagnosis.dataset in datasets)
        ][:_MAX_SHOWN]

    def of_trajectory(self, facts: Mapping[str, object]) -> list[ShownProblem]:
        """Return the problems of the instance and the data set that a trajectory belongs to."""
        return [
            one
            for one in self.problems
            if one.instance == facts["instance"] and one.diagnosis.dataset in ("", facts["dataset"])
        ]


@dataclass(slots=True)
class ProblemReader:
    """Reader of the problems of a run that reads the tables of each record once."""

    _read: dict[tuple[str, str], list[Diagnosis]] = field(default_factory=dict)
    """Address and fingerprint of a record -> its problems."""

    def problems(self, records: Sequence[StageRecord], run: Run) -> RunProblems:
        """Return the problems of all records that are not results of an earlier iteration."""
        before, self._read = self._read, {}
        known = {record.address: record for record in records}
        found: list[ShownProblem] = []
        for record in own_results(records):
            key = record.address, f"{record.fingerprint} {record.finished_at}"
            self._read[key] = before[key] if key in before else diagnoses_of(record, run)
            found += [ShownProblem(_shown_at(one.rollouts, known), one) for one in self._read[key]]
        return RunProblems(found)


def _shown_at(address: str, known: Mapping[str, StageRecord]) -> str:
    """Return the instance under which trajectories are shown; for a reused instance, the one that made the result."""
    record = known.get(address)
    return (result_origin(record, lambda other: known.get(str(other))) if record is not None else "") or address
