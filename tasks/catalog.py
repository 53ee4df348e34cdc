"""List the stage instances of a configuration, with their settings and inputs.

The command line, the Prefect flows and the generated reference all read this list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from treadle.core.config import Section, semantic_dump
from treadle.core.errors import ConfigError, TreadleError, closest
from treadle.core.runs.address import Address, phase_name, phase_of
from treadle.core.runs.stage import Instance
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.plan import Plan
from treadle.stages.registry import SHIPPED, stage_entry
from treadle.tasks.config import TreadleConfig, overridden, table_of
from treadle.tasks.planning.flow_plan import FlowPlan
from treadle.tasks.planning.iterations import at_iteration
from treadle.tasks.planning.order import bound_by_recipe, flow_addresses


def flow_instances(config: TreadleConfig) -> list[Instance]:
    """Return all instances of the flow in an order in which they can run.

    Raises ConfigError for invalid settings, for unknown addresses in `overrides`, for a cycle (an instance that
    depends on its own output) and for a recipe in the wrong order, and DataError for a missing file.
    """
    addresses = flow_addresses(config)
    known = {str(address) for address in addresses}
    for text in config.overrides:
        if text not in known:
            raise ConfigError(
                f"overrides names {text!r}, which is not in this flow{closest(text, known)}; there are "
                f"{', '.join(sorted(known))}"
            )
    made = [instance(config, address) for address in addresses]
    _refuse_cycles(made)
    _check_order(config.flow.recipe.type, made)
    return made


def _check_order(recipe: str, instances: Sequence[Instance]) -> None:
    """Raise ConfigError if a recipe runs an instance twice, or before one that it reads."""
    places: dict[Address, int] = {}
    for place, item in enumerate(instances):
        if places.setdefault(item.address, place) != place:
            raise ConfigError(f"the recipe {recipe} runs {item.address} twice; give one step a qualifier")
    for place, item in enumerate(instances):
        for producer in (one for bound in item.inputs.values() for one in bound):
            if places.get(producer, place) > place:
                raise ConfigError(
                    f"the recipe {recipe} runs {item.address} before {producer}, which it reads; exchange the steps"
                )


def _refuse_cycles(instances: Sequence[Instance]) -> None:
    reads = {item.address: {one for bound in item.inputs.values() for one in bound} for item in instances}
    for item in instances:
        visited: set[Address] = set()
        queue = [item.address]
        while queue:
            for producer in reads.get(queue.pop(), ()):
                if producer == item.address:
                    models = ", ".join(map(str, item.inputs.get("checkpoint", ()))) or "another"
                    raise ConfigError(
                        f"{item.address} depends on its own output (its checkpoint is {models}); "
                        "use a model that exists before it"
                    )
                if producer not in visited:
                    visited.add(producer)
                    queue.append(producer)


def instance(config: TreadleConfig, address: Address) -> Instance:
    """Return the instance at an address; its input files are read for their digests.

    Raises ConfigError if it cannot exist in this configuration, DataError for a missing file.
    """
    entry = stage_entry(address.stage)
    if address.iteration > (last := config.flow.iterations):
        has = f"{last} iterations" if last > 1 else "1 iteration"
        raise ConfigError(f"{address}: the flow has {has}; write {replace(address, iteration=last)}")
    plan = at_iteration(config, address.iteration)
    _check_qualifier(plan.config, address, entry)
    settings, inputs = _derived(entry, plan, address)
    return Instance(
        address=address,
        stage=entry.stage,
        settings=settings,
        inputs={**inputs, **bound_by_recipe(config, address)},
    )


def _derived(entry: StageEntry, plan: Plan, address: Address) -> tuple[Section, Inputs]:
    """Return settings and inputs of an instance; raise ConfigError if the code of another package's stage fails."""
    if entry.name in SHIPPED:
        return entry.settings(plan, address), entry.inputs(plan, address)
    try:
        settings, inputs = entry.settings(plan, address), dict(entry.inputs(plan, address))
        for one in (one for bound in inputs.values() for one in bound):
            stage_entry(one.stage)
    except TreadleError as error:
        raise ConfigError(str(error) if str(address) in str(error) else f"{address}: {error}") from error
    except Exception as error:  # any error of another package
        raise ConfigError(
            f"{address}: its StageEntry gives no settings or inputs: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(settings, Section):
        raise ConfigError(f"{address}: `settings` of its StageEntry returned {type(settings).__name__}, not a Section")
    return settings, inputs


def _check_qualifier(config: TreadleConfig, address: Address, entry: StageEntry) -> None:
    """Raise ConfigError if the address lacks a model or phase, or has an unknown or superfluous one."""
    by_model, by_phase = ("model" in entry.qualifiers, "phase" in entry.qualifiers)
    if by_phase and (phase := phase_of(address.qualifier)) is not None:
        if phase > (last := config.curriculum.phases):
            raise ConfigError(
                f"{address}: the curriculum has {last} phases; the last one is "
                f"{replace(address, qualifier=phase_name(last))}"
            )
        return
    stem = f"{address.iteration}/{address.stage}"
    if by_model and address.qualifier not in config.models:
        example = next(iter(config.models), "base")
        near = closest(address.qualifier or "", config.models)
        raise ConfigError(f"{address} names no model of this configuration; write it as {stem}@{example}{near}")
    if by_phase and not by_model:
        raise ConfigError(f"{address} names no phase of the curriculum; write it as {stem}@{phase_name(1)}")
    named = [step.qualifier for step in config.flow.recipe.steps if address.stage in step.stages]
    # Stages with a model as qualifier take any model: a recipe may name one, next to steps for each model.
    if any(named) and not by_model and (address.qualifier or "") not in named:
        known = (f"{stem}@{name}" if name else stem for name in named)
        raise ConfigError(f"{address}: the recipe has {', '.join(known)}")
    if not by_model and not any(named) and address.qualifier is not None:
        raise ConfigError(f"{address}: there is one {address.stage} per iteration, so it takes no @{address.qualifier}")


def semantic_of(config: TreadleConfig) -> dict[str, Any]:
    """Return the configuration without operational keys, also inside `overrides`; a run is locked to it.

    The models of the flow are always listed, even if the configuration leaves them to be derived.
    """
    semantic: dict[str, Any] = semantic_dump(config)
    if config.models:
        semantic["flow"]["models"] = list(FlowPlan(config).compared_models())
    for text in config.overrides:
        address = Address.parse(text)
        semantic["overrides"][text] = semantic_dump(overridden(config, address, table_of(config, address)))
    return semantic
