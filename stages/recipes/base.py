"""Define recipes: the order of a flow as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from treadle.core.registry import Entry

Each = Literal["iteration", "phase", "model", "row_policy"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a recipe: stages that run one after another, once or several times.

    Attributes:
        stages: Names of the stages; those that `flow.stages` leaves out are skipped.
        each: How often they run. `iteration`: once per iteration; `phase`: in each phase of the curriculum; `model`:
            for each model that the flow compares; `row_policy`: for the policy, if its rollouts become rows of sft.
        qualifier: Qualifier of the addresses of a step that runs once, for a stage that occurs several times in a
            recipe, as in `1/dpo@critic`. A step `questions` with a qualifier runs if the next step does.
        reads: `stage.input` -> instances of the same iteration that replace the stage's default input, such as
            `dpo.preferences` -> `("preferences@turn",)`.

    With `each` = `phase`, `Recipe.goals` decides which stages of the step run. If no stage of the step trains a policy,
    only the first phase runs.
    """

    stages: tuple[str, ...]
    each: Each = "iteration"
    qualifier: str = ""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Recipe(Entry):
    """The stages of a flow in their order."""

    type: str = "calibrate"
    """Recipe of the flow: `calibrate`, `agent-evolver`, `sweet`, `sweet-baselines` or `multi-turn-dpo`,
    `my_recipes.py:Mine` for a class in a file next to the configuration, `package.module:Mine`, or the name of an entry
    point in the group `treadle.recipes`."""
    steps: ClassVar[tuple[Step, ...]] = ()
    """Steps of one iteration, producers first."""
    goals: ClassVar[tuple[str, ...]] = ()
    """Stages up to which the steps with `each` = `phase` run: such a step ends with the last of these stages that the
    flow requests, and is skipped if the flow requests no such stage."""
