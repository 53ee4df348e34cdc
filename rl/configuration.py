"""Define the tables of a run's configuration for reinforcement learning."""

from __future__ import annotations

from treadle.core.config import Section
from treadle.rl.config import RlOptions
from treadle.rl.curriculum import CurriculumSettings
from treadle.rl.selection.settings import SelectionOptions


class RlTables(Section):
    """Tables of the stages `selection` and `rl`, and of their phases."""

    selection: SelectionOptions = SelectionOptions()
    """Stage `selection`: which questions a phase of reinforcement learning trains on."""
    rl: RlOptions = RlOptions()
    """Stage `rl`: how a policy is trained in one phase of reinforcement learning."""
    curriculum: CurriculumSettings = CurriculumSettings()
    """Phases of reinforcement learning."""
