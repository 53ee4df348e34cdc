"""Find the tables of scores that a report compares, imported rollouts behind them, and telemetry of stages."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.runs.address import Address
from treadle.core.runs.records import InputRef, StageRecord
from treadle.core.runs.run import Run
from treadle.report.summary import label_prefixes


def report_tables(report: StageRecord) -> list[tuple[InputRef, str]]:
    """Return each table of scores in a report, with the prefix that the report puts before its model names."""
    refs = report.inputs["scores"]
    prefixes = label_prefixes([(Address.parse(ref.address), ref.artifact.digest) for ref in refs])
    return [(ref, prefix) for ref, prefix in zip(refs, prefixes, strict=True) if prefix is not None]


def imported_lines(report: StageRecord, run: Run) -> list[str]:
    """Return a sentence for each model of a report whose rollouts were imported from another program."""
    records, found = run.readable_records()[0], dict[str, str]()
    for scores, prefix in report_tables(report):
        scored = maker_of(scores, records)
        for rollouts in scored.inputs.get("rollouts", ()) if scored is not None else ():
            made = maker_of(rollouts, records)
            if made is not None and made.imported_from:
                found[prefix + made.settings["model_name"]] = made.imported_from
    return [
        f"The rollouts of {model} were imported from {file}: they measure the model that made them there, and the "
        "numbers of its prompt and sampled tokens are unknown."
        for model, file in found.items()
    ]


def maker_of(made: InputRef, records: Sequence[StageRecord]) -> StageRecord | None:
    """Return the record of the instance that made a table; None if it has been replaced since or cannot be read."""
    ours = (one for one in records if one.address == made.address)
    return next((one for one in ours if one.outputs.get(made.artifact.kind) == made.artifact), None)
