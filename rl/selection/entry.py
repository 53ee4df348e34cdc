"""Declare the stage `selection` to flows."""

from __future__ import annotations

from dataclasses import replace

from treadle.core.runs.address import Address, phase_name
from treadle.rl.phases import check_phase, phase_number
from treadle.rl.selection.settings import SelectionOptions, SelectionSettings
from treadle.rl.selection.stage import SELECTION_STAGE
from treadle.rl.selection.summary import selection_report
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


SELECTION = StageEntry(
    stage=SELECTION_STAGE,
    table=SelectionOptions,
    settings=_settings,
    inputs=_inputs,
    qualifiers=("phase",),
    report=selection_report,
    description="Select the questions that a phase trains on; set its instance, such as 1/selection@phase-2.",
)
