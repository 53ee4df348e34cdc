"""Make the job of an engine's process: its inputs in addition to the plan and the rows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.core.engines.config import Machine
from treadle.core.engines.training import EngineOptions
from treadle.environments.registry import ENVIRONMENTS
from treadle.environments.scorers.registry import SCORERS
from treadle.rl.config import RlOptions, RlSettings
from treadle.rl.credit.registry import CREDITS
from treadle.rl.experience.files import ExperienceFiles
from treadle.rl.rewards.registry import REWARDS
from treadle.rl.training.launch import EngineJob
from treadle.rl.training_engine import RL_ENGINES


def engine_job(
    settings: RlSettings,
    start: Path,
    environments: Mapping[str, Mapping[str, Any]],
    experience: ExperienceFiles | None = None,
) -> EngineJob:
    """Return the job of an engine that trains the policy in the folder `start`.

    `environments` has the settings of each environment by name, as JSON-able data.
    """
    return EngineJob(
        model=str(start),
        environments=environments,
        interpreter=sys.executable,
        import_folders=import_folders(settings),
        experience=None if experience is None else experience.as_job(),
    )


def engine_options(options: RlOptions, machine: Machine) -> EngineOptions:
    """Return the options with which the processes of a training are run."""
    return EngineOptions(
        variant=machine.variant,
        threads=options.threads,
        devices=options.devices,
        # With several nodes, Ray assigns the GPUs.
        num_devices=machine.num_devices if machine.num_nodes == 1 else None,
        stall_timeout_s=options.stall_timeout_s,
    )


def import_folders(settings: RlSettings) -> tuple[Path, ...]:
    """Return the folders from which an engine's process imports the user's own types; see `Registry.import_folder`."""
    options = settings.options
    found = (
        *map(ENVIRONMENTS.import_folder, settings.named_environments().values()),
        REWARDS.import_folder(options.reward),
        CREDITS.import_folder(options.credit),
        RL_ENGINES.import_folder(options.engine),
        *map(SCORERS.import_folder, settings.scorers.values()),
    )
    return tuple(dict.fromkeys(folder for folder in found if folder is not None))
