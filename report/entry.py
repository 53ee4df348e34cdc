"""Declare the stage `report` to flows."""

from __future__ import annotations

from treadle.core.runs.address import Address
from treadle.eval.config import ReportSettings
from treadle.report.data_sets import report_settings
from treadle.report.stage import REPORT_STAGE
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.plan import Plan


def _inputs(plan: Plan, address: Address) -> Inputs:
    iterations = range(1, address.iteration + 1)
    models = plan.compared_models()
    return {"scores": tuple(Address(number, "scores", model) for number in iterations for model in models)}


REPORT = StageEntry(
    stage=REPORT_STAGE,
    table=ReportSettings,
    settings=report_settings,
    inputs=_inputs,
    description="Build the report of all scores.",
)
