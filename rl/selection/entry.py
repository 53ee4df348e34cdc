"""Declare the stage `selection` to flows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from treadle.core.runs.address import Address, phase_name
from treadle.core.runs.stage import Stage, StageContext
from treadle.rl.phases import check_phase, phase_number
from treadle.rl.selection.settings import SelectionOptions, SelectionSettings
from treadle.rl.selection.summary import selection_report
from treadle.rl.selection.tables import RL_REJECTIONS, RL_ROWS
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> SelectionSettings:
    """Return the settings of `selection@phase-<k>`; raise ConfigError as `check_phase` does."""
    check_phase(plan, address)
    return SelectionSettings(
        options=plan.options(address, SelectionOptions),
        phase=phase_number(address),
        **plan.mixture(),
        seed=plan.seed,
    )


def _inputs(plan: Plan, address: Address) -> Inputs:
    """Return the inputs of `selection@phase-<k>`: rollouts and scores of its phase, and rows of earlier phases."""
    iteration, phase = address.iteration, phase_number(address)
    return {
        "rollouts": (replace(address, stage="rollouts"),),
        "scores": (replace(address, stage="scores"),),
        "questions": (Address(iteration, "questions"),),
        "previous": tuple(Address(iteration, "selection", phase_name(earlier)) for earlier in range(1, phase)),
    }


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.rl.selection.stage import run_selection

    return run_selection(context)


SELECTION_STAGE = Stage(
    name="selection",
    version=3,
    settings=SelectionSettings,
    consumes={"rollouts": "rollouts", "scores": "scores", "questions": "questions", "previous": "rl_rows"},
    optional=frozenset({"previous"}),
    produces=(RL_ROWS, RL_REJECTIONS),
    run=_run,
)
SELECTION = StageEntry(
    stage=SELECTION_STAGE,
    table=SelectionOptions,
    settings=_settings,
    inputs=_inputs,
    qualifiers=("phase",),
    report=selection_report,
    description="Select the questions that a phase trains on; set its instance, such as 1/selection@phase-2.",
)
