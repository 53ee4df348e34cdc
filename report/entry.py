"""Declare the stage `report` to flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext
from treadle.eval.config import ReportSettings
from treadle.report.data_sets import report_settings
from treadle.report.tables import COMPARISONS, GROUPS, SUMMARY
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.plan import Plan


def _inputs(plan: Plan, address: Address) -> Inputs:
    iterations = range(1, address.iteration + 1)
    models = plan.compared_models()
    return {
        "scores": tuple(Address(number, "scores", model) for number in iterations for model in models),
        "questions": tuple(Address(number, "questions") for number in iterations),
    }


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.report.stage import run_report

    return run_report(context)


REPORT_STAGE = Stage(
    name="report",
    version=9,
    settings=ReportSettings,
    consumes={"scores": "scores", "questions": "questions"},
    optional=frozenset({"questions"}),
    produces=(SUMMARY, COMPARISONS, GROUPS),
    run=_run,
    depends_on_address=True,  # The name contains the iterations of models that have several versions.
)
REPORT = StageEntry(
    stage=REPORT_STAGE,
    table=ReportSettings,
    settings=report_settings,
    inputs=_inputs,
    description="Build the report of all scores.",
)
