"""Return a configuration as one of its iterations sees it. Documented in docs/behaviour/iterations.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from treadle.core.engines.config import VllmServer
from treadle.core.llm.config import ModelSettings
from treadle.stages.models import named_checkpoint
from treadle.stages.registry import stage_entries
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.flow_plan import FlowPlan, can_be_made


def at_iteration(config: TreadleConfig, iteration: int) -> FlowPlan:
    """Return the configuration as an iteration sees it.

    - Checkpoints of the first iteration that tables name become those of this iteration.
    - Training starts from this iteration's starting policy, unless a table lets it start from a checkpoint that the
      iteration itself makes.
    - `flow.iterations` is the number of this iteration.
    - `overrides` stay unchanged, so a checkpoint that they name stays that of the first iteration.
    """
    policy = FlowPlan(config).starting_policy(iteration)
    changes: dict[str, Any] = {
        "flow": config.flow.model_copy(update={"iterations": iteration}),
        "models": {name: _own_model(config, model, iteration) for name, model in config.models.items()},
    }
    for name, entry in stage_entries().items():
        if entry.start_key:
            table = getattr(config, name)
            start = getattr(table, entry.start_key)
            own = _own(config, start, iteration)
            if policy is not None and own == start:
                own = str(policy)
            if own != start:
                # The configured revision belongs to the start that is replaced.
                revision = {"revision": ""} if "revision" in type(table).model_fields else {}
                changes[name] = table.model_copy(update={entry.start_key: own, **revision})
    return FlowPlan(config.model_copy(update=changes))


def _own_model(config: TreadleConfig, model: ModelSettings, iteration: int) -> ModelSettings:
    """Return a model with the weights of an iteration; user-run servers serve them under the checkpoint's address."""
    if isinstance(model.server, VllmServer):
        own = _own(config, model.server.model, iteration)
        return model.model_copy(update={"server": model.server.model_copy(update={"model": own})})
    return model if model.server else model.model_copy(update={"model": _own(config, model.model, iteration)})


def _own(config: TreadleConfig, name: str, iteration: int) -> str:
    """Return the iteration's own checkpoint for a name such as `1/sft`; any other name is returned unchanged."""
    for made in named_checkpoint(name):
        if made.iteration == 1 and made.stage in config.flow.stages and can_be_made(config, made):
            return str(replace(made, iteration=iteration))
    return name
