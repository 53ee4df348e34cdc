"""Behaviour common to all operators, and what each of them may do."""

from __future__ import annotations

import sys

import pytest
from support.rollouts.operator_bench import STEPS, World
from support.rollouts.operator_checks import FINISH, NEW_STEP, rejected
from support.sandbox.memories import Remembering

from treadle.datagen.operators import SHIPPED, load_operators
from treadle.datagen.operators.global_refinement import GlobalRefinement
from treadle.datagen.operators.hint_after_step import HintAfterStep
from treadle.datagen.operators.parent import Finding
from treadle.datagen.operators.redundant_modification import RedundantModification
from treadle.datagen.operators.reflection import Reflection
from treadle.datagen.operators.rerollout import Rerollout
from treadle.datagen.operators.self_correction import SelfCorrection
from treadle.datagen.pools.settings import DEFAULT_OPERATORS


@pytest.fixture(params=["qwen", "bytes", "text"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def test_every_shipped_operator_loads_by_name_and_reflection_is_off() -> None:
    operators = load_operators(tuple(SHIPPED))
    assert [operator.name for operator in operators] == list(SHIPPED)
    assert [operator.branch for operator in operators] == ["correct"] * 3 + ["incorrect"] * 4
    assert set(SHIPPED) - set(DEFAULT_OPERATORS) == {"reflect"}


async def test_rerollout_is_independent_of_its_parent(world: World) -> None:
    parent = await world.rolled(STEPS)
    edit = await Rerollout().apply(world.bench(parent, policy=[STEPS[0], FINISH]))
    assert edit.trajectory.text == f"{STEPS[0]}<result>search found: A</result>{FINISH}"
    assert (edit.step, edit.text) == (None, "")


async def test_operator_may_roll_out_several_times_and_resumes_from_its_cache(world: World) -> None:
    parent = await world.rolled(STEPS)
    memory = Remembering()
    policy = [STEPS[0], FINISH, "<think>Another.</think><answer>\\boxed{2}</answer>", FINISH]
    bench = world.bench(parent, policy=policy, memory=memory)
    fresh, other, on = await bench.roll_out(), await bench.roll_out(), await bench.continue_from(bench.prefix(1))
    assert fresh.text.startswith(STEPS[0]) and other.text.endswith("\\boxed{2}</answer>")
    assert on.text == f"{STEPS[0]}<result>search found: A</result>{FINISH}"
    assert len({request.seed for request in world.scripts["policy"].requests}) == 4
    again = world.bench(parent, memory=memory)
    texts = [(await again.roll_out()).text, (await again.roll_out()).text]
    texts.append((await again.continue_from(again.prefix(1))).text)
    assert texts == [fresh.text, other.text, on.text]
    assert not world.scripts["policy"].requests


@pytest.mark.parametrize("operator", [RedundantModification(), SelfCorrection(), HintAfterStep(), Reflection()])
async def test_empty_trajectory_has_no_steps_to_edit(operator: object) -> None:
    world = World("bytes")
    parent = await world.rolled([""])
    assert (await rejected(operator, world.bench(parent))).reason == "no_steps"


@pytest.mark.parametrize("name", list(SHIPPED))
async def test_repeated_application_sends_no_request_and_gives_the_same_result(name: str) -> None:
    memory = Remembering()
    world = World("qwen")
    parent = await world.rolled(STEPS)
    (operator,) = load_operators([name])
    critic = {
        "redundant_mod": [f"Step: 2\nCorrected Step: {NEW_STEP}"],
        "global_refine": ["LOOK</think>", "Y</think>", "Z</think>"],
    }.get(name, ["Step: 2"])
    refiner = [" it is early.", "<think>Not yet.</think><search>Z</search>"]
    edit = await operator.apply(world.bench(parent, critic=critic, refiner=refiner, policy=[FINISH], memory=memory))
    again = await operator.apply(world.bench(parent, memory=memory))
    assert (again.trajectory.text, again.trajectory.samples[0].ids) == (
        edit.trajectory.text,
        edit.trajectory.samples[0].ids,
    )
    assert (again.step, again.text) == (edit.step, edit.text)
    assert not any(script.requests for script in world.scripts.values())


@pytest.mark.parametrize("honours_stops", [True, False])
async def test_server_that_continues_after_a_stop_makes_no_difference(honours_stops: bool) -> None:
    world = World("qwen", honours_stops=honours_stops)
    parent = await world.rolled(STEPS)
    runs_on = (
        f"Step: 2\nAnalysis: short\nCorrected Step: {NEW_STEP}<result>x</result><think>y</think><answer>1</answer>"
    )
    edit = await RedundantModification().apply(world.bench(parent, critic=[runs_on], policy=[FINISH]))
    assert edit.trajectory.text.endswith(f"{NEW_STEP}<result>search found: Y</result>{FINISH}")
    thoughts = [f"{thought}</think><answer>1</answer>" for thought in ("L", "Y", "Z")]
    refined = await GlobalRefinement().apply(world.bench(parent, critic=thoughts))
    assert [part.text for part in refined.trajectory.segments if part.kind == "think"] == [
        f"<think>{thought}</think>" for thought in ("L", "Y", "Z")
    ]


async def test_exit_in_a_shared_finding_is_its_error() -> None:
    async def find() -> None:
        sys.exit(0)

    with pytest.raises(RuntimeError, match="tried to end the process"):
        await Finding.begin({}, find()).task
