"""Define the tables of a run's configuration for the stages that make data."""

from __future__ import annotations

from treadle.core.config import Section
from treadle.datagen.conversion.settings import ConversionOptions
from treadle.datagen.exploration.settings import ExplorationOptions
from treadle.datagen.pools.settings import PoolOptions
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.datagen.sft_rows.settings import SftRowsOptions


class DataTables(Section):
    """Tables of the stages `questions`, `exploration`, `pools`, `conversion` and `sft_rows`."""

    questions: QuestionsSettings = QuestionsSettings()
    """Stage `questions`: where questions come from and how they are checked."""
    exploration: ExplorationOptions = ExplorationOptions()
    """Stage `exploration`: how further tasks are made by exploring the states of tasks."""
    pools: PoolOptions = PoolOptions()
    """Stage `pools`: the self-evolving data flywheel."""
    conversion: ConversionOptions = ConversionOptions()
    """Stage `conversion`: how a teacher rewrites trajectories as plans of parallel calls."""
    sft_rows: SftRowsOptions = SftRowsOptions()
    """Stage `sft_rows`: which trajectories become rows for fine-tuning."""
