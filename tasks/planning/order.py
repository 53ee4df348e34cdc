"""List the instances of a flow in their order, from its recipe. Documented in docs/guides/stages.md."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.runs.address import Address, phase_name
from treadle.datagen.sft_rows.row_source import rolled_out_policy
from treadle.stages.recipes.base import Each, Step
from treadle.stages.registry import makes_checkpoint, stage_entry
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.flow_plan import FlowPlan


def flow_addresses(config: TreadleConfig) -> list[Address]:
    """Return the addresses of the flow's instances, producers first."""
    iterations = range(1, config.flow.iterations + 1)
    return [address for iteration in iterations for address in _iteration_addresses(config, iteration)]


def _iteration_addresses(config: TreadleConfig, iteration: int) -> list[Address]:
    plan = FlowPlan(config)
    policy = rolled_out_policy(plan, iteration)
    found = []
    for step in flow_steps(config):
        qualifiers: Sequence[str | None] = (step.qualifier or None,)
        if step.each == "row_policy":
            qualifiers = () if policy is None else (policy,)
        elif step.each == "model":
            # Flows without rollouts need no models.
            qualifiers = [one for one in plan.compared_models() if one != policy] if wanted_stages(config, step) else ()
        elif step.each == "phase":
            qualifiers = [phase_name(phase) for phase in phases_of(config, step)]
        stages = wanted_stages(config, step)
        found += [Address(iteration, stage, qualifier) for qualifier in qualifiers for stage in stages]
    return found


def flow_phases(config: TreadleConfig, iteration: int) -> list[Address]:
    """Return the instances of all phases that are part of the flow, producers first."""
    return [
        Address(iteration, stage, phase_name(phase))
        for step in flow_steps(config)
        if step.each == "phase"
        for phase in phases_of(config, step)
        for stage in wanted_stages(config, step)
    ]


def flow_steps(config: TreadleConfig) -> list[Step]:
    """Return the steps of the recipe, with a step for each requested stage of another package.

    Such a stage runs after the last one that produces a table that it reads. A step that
    only makes questions with a qualifier is left out if the flow does not run the next step, which reads them.
    """
    steps = list(config.flow.recipe.steps)
    for name in config.flow.stages:
        if any(name in step.stages for step in steps):
            continue
        entry = stage_entry(name)
        read = set(entry.stage.consumes.values())
        places = [place for place, step in enumerate(steps, 1) if any(read & _kinds(stage) for stage in step.stages)]
        each: Each = "model" if "model" in entry.qualifiers else "iteration"
        steps.insert(max(places, default=len(steps)), Step((name,), each=each))
    return [step for place, step in enumerate(steps, 1) if not _serves(step) or _any_wanted(config, steps[place:])]


def _serves(step: Step) -> bool:
    """Return whether a step only makes the questions, with a qualifier, that the next step reads."""
    return step.stages == ("questions",) and bool(step.qualifier)


def _any_wanted(config: TreadleConfig, later: Sequence[Step]) -> bool:
    return bool(later and wanted_stages(config, later[0]))


def _kinds(stage: str) -> set[str]:
    return {table.kind for table in stage_entry(stage).stage.produces}


def wanted_stages(config: TreadleConfig, step: Step) -> tuple[str, ...]:
    """Return the stages of a step that the flow runs."""
    wanted = set(config.flow.stages) if _reads_texts_alone(config) else {"questions", *config.flow.stages}
    if step.each != "phase":
        return tuple(stage for stage in step.stages if stage in wanted)
    goals = [
        place for place, stage in enumerate(step.stages, 1) if stage in config.flow.recipe.goals and stage in wanted
    ]
    return step.stages[: max(goals, default=0)]


def _reads_texts_alone(config: TreadleConfig) -> bool:
    """Return whether no stage of the flow reads questions, because all its rows come from files of whole texts."""
    stages, rows = {*config.flow.stages}, config.sft_rows
    if config.questions.sources or not stages <= {"conversion", "sft_rows", "sft"}:
        return False
    if "conversion" in stages:
        return bool(config.conversion.texts) and rows.trajectories in (None, "conversion")
    return bool(rows.texts) and rows.trajectories in (None, "texts")


def phases_of(config: TreadleConfig, step: Step) -> Sequence[int]:
    """Return the phases in which a step runs: only the first one if no policy is trained for the next."""
    trains = any(makes_checkpoint(stage) for stage in wanted_stages(config, step))
    return range(1, config.curriculum.phases + 1 if trains else 2)


def bound_by_recipe(config: TreadleConfig, address: Address) -> dict[str, tuple[Address, ...]]:
    """Return the inputs of an instance whose producers the recipe sets, not the stage, with these producers."""
    bound = {}
    for step in flow_steps(config):
        if address.stage not in step.stages or (step.qualifier or None) not in (None, address.qualifier):
            continue
        for name, producers in step.reads.items():
            stage, _, read = name.partition(".")
            if stage == address.stage:
                bound[read] = tuple(Address.parse(f"{address.iteration}/{producer}") for producer in producers)
    return bound
