"""Show in a report likely problems of the rollouts and scores that it compares."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from treadle.core.errors import RunError
from treadle.core.figures import Cell, Figures, escape, render_table
from treadle.core.runs.address import Address
from treadle.core.runs.records import InputRef, StageRecord
from treadle.core.runs.run import Run
from treadle.environments.diagnosis.diagnosis import Diagnosis
from treadle.environments.diagnosis.reading import all_diagnoses

PROBLEMS_TITLE = "What looks wrong"
PROBLEMS_READING = "Results that are probably not the model's ability: how rollouts ended, likely causes, and examples."


def compared_diagnoses(report: StageRecord, run: Run, without: Collection[str] = ()) -> list[Diagnosis]:
    """Return the problems of those scores of a report, and of their rollouts, that still exist.

    `without`: addresses of instances that are left out.
    """
    records: dict[str, StageRecord] = {}
    for scores in report.inputs["scores"]:
        if (scored := _maker(scores, run)) is not None:
            made = [_maker(ref, run) for ref in scored.inputs.get("rollouts", ())]
            records |= {record.address: record for record in (*made, scored) if record is not None}
    return all_diagnoses((record for address, record in records.items() if address not in without), run)


def _maker(ref: InputRef, run: Run) -> StageRecord | None:
    """Return the record of the instance that made an input; None if it has been replaced or cannot be read."""
    try:
        record = run.record(Address.parse(ref.address))
    except RunError:
        return None
    return record if record is not None and ref.artifact in record.outputs.values() else None


def examples_table(one: Diagnosis) -> Figures:
    """Return a table of the examples of a problem, with gold answers if any example has one."""
    has_gold = any(example.gold for example in one.examples)
    rows: list[tuple[Cell, ...]] = [
        (
            example.rollout_key,
            example.question,
            example.status,
            example.text or "nothing",
            *([example.gold] if has_gold else []),
        )
        for example in one.examples
    ]
    header = ("rollout", "question", "ended", "answer", "gold") if has_gold else ("rollout", "question", "ended", "end")
    return Figures("Examples", header, tuple(rows), num_names=len(header))


def problems_markdown(found: Sequence[Diagnosis]) -> Iterator[str]:
    """Yield the parts of the section on problems; nothing if there are no problems."""
    if found:
        yield f"## {PROBLEMS_TITLE}"
        yield PROBLEMS_READING
    for one in found:
        yield f"### {escape(one.address)}"
        yield escape(one.headline)
        asked = [f"Asked for: {one.asked}"] if one.asked else []
        yield "\n".join(f"- {escape(sentence)}" for sentence in (*one.causes, *asked))
        if one.examples:
            yield render_table(examples_table(one))
