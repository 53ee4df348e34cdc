"""Find the settings with which a run trains its policy on preferences."""

from __future__ import annotations

from dataclasses import replace

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.rl.dpo.config import DpoOptions
from treadle.rl.dpo.instances import dpo_options
from treadle.tasks.planning.iterations import at_iteration
from treadle.tasks.planning.run_setup import stored_config


def policy_options(run: Run, pairs: str) -> DpoOptions:
    """Return the settings of `dpo@policy` in the iteration of an instance that made pairs, as the run is configured."""
    address = replace(Address.parse(pairs), stage="dpo", qualifier="policy")
    return dpo_options(at_iteration(stored_config(run, ()), address.iteration), address)
