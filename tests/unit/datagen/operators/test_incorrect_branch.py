"""Operators on wrong trajectories: a step is corrected, a hint or a reflection leads on."""

from __future__ import annotations

import asyncio

import pytest
from support.rollouts.operator_bench import HINTS, STEPS, World, environment
from support.rollouts.operator_checks import FINISH, NEW_STEP, check_contexts, check_prefix, rejected

from treadle.agent.dialects.base import RESULT, render
from treadle.agent.dialects.tags import TOOL_DIALECT, tokenise
from treadle.core.seeds import derive_seed
from treadle.datagen.operators.hint_after_step import HintAfterStep
from treadle.datagen.operators.hint_at_tail import HintAtTail
from treadle.datagen.operators.reflection import Reflection
from treadle.datagen.operators.self_correction import SelfCorrection


@pytest.fixture(params=["qwen", "bytes", "text"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.mark.covers("flywheel-17", "flywheel-18")
async def test_self_correction_explains_and_replaces_the_flawed_step(world: World) -> None:
    parent = await world.rolled(STEPS)
    bench = world.bench(
        parent,
        critic=["Step: 2\nAnalysis: a query is missing"],
        refiner=[" a query\nis missing.\n\nNever mind.", "I need Y. <search>Y</search><result>made up</result>"],
        policy=[FINISH],
    )
    edit = await SelfCorrection().apply(bench)
    analysis = "The trouble with this step is that a query\nis missing."
    kept = (
        f"{STEPS[0]}<result>search found: A</result>"
        "<think>I need Y.</think><search>Y</search><result>search found: Y</result>"
    )
    assert edit.trajectory.text == kept + FINISH
    assert (edit.step, edit.text) == (2, analysis)
    assert [tool.arguments for tool in world.tools.values()] == [["Y"], []]
    check_prefix(edit.trajectory, parent, 3, world)
    check_contexts(world, edit.trajectory, kept)
    analysed, replaced = world.scripts["refiner"].prompts()
    assert analysed.endswith("assistant\nStep: 2\nAnalysis: The trouble with this step is that")
    assert f"<analysis>\n{analysis}\n</analysis>" in replaced
    assert all("#### Step 2: " in prompt and "#### Step 3: " not in prompt for prompt in (analysed, replaced))
    assert {request.stop for request in world.scripts["refiner"].requests} == {TOOL_DIALECT.stops}
    assert list(bench.used_prompts) == ["analyse_flaw", "replace_step"]


async def test_answer_step_can_be_corrected(world: World) -> None:
    parent = await world.rolled(STEPS)
    refiner = [" it is early.", "<think>Not yet.</think><search>Z</search>"]
    edit = await SelfCorrection().apply(world.bench(parent, critic=["Step: 3"], refiner=refiner, policy=[FINISH]))
    assert edit.trajectory.text.endswith(
        f"<think>Not yet.</think><search>Z</search><result>search found: Z</result>{FINISH}"
    )
    check_prefix(edit.trajectory, parent, 7, world)


async def test_empty_analysis_makes_no_trajectory() -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    error = await rejected(SelfCorrection(), world.bench(parent, critic=["Step: 1"], refiner=["\n"]))
    assert error.reason == "empty_analysis"


@pytest.mark.covers("flywheel-12")
@pytest.mark.parametrize(
    ("reply", "reason"),
    [("no idea", "no_step_number"), ("Step: 4", "step_out_of_range"), ("Step: 0", "step_out_of_range")],
)
async def test_flaw_is_located_once_for_all_operators(reply: str, reason: str) -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    bench = world.bench(parent, critic=[f"{reply}\nAnalysis: never written"])
    first, second = await asyncio.gather(rejected(SelfCorrection(), bench), rejected(HintAfterStep(), bench))
    assert (first.reason, second.reason) == (reason, reason)
    assert first.reply == f"{reply}\nAnalysis:"
    (request,) = world.scripts["critic"].requests
    assert request.stop == (*TOOL_DIALECT.stops, "Analysis:")


@pytest.mark.covers("flywheel-15", "flywheel-17", "flywheel-18")
async def test_hint_follows_the_result_of_the_flawed_step_in_an_open_thought(world: World) -> None:
    parent = await world.rolled(STEPS)
    bench = world.bench(parent, critic=["step: [1]"], policy=[" I do.</think><search>more</search>", FINISH])
    edit = await HintAfterStep().apply(bench)
    assert edit.text in HINTS
    kept = f"{STEPS[0]}<result>search found: A</result><think>{edit.text}"
    assert (
        edit.trajectory.text == f"{kept} I do.</think><search>more</search><result>search found: more</result>{FINISH}"
    )
    assert edit.step == 1
    assert world.tools["search"].arguments == ["more"]
    check_prefix(edit.trajectory, parent, 3, world)
    check_contexts(world, edit.trajectory, kept)
    kinds = [segment.kind for segment in edit.trajectory.segments]
    assert kinds == ["think", "search", "result", "think", "search", "result", "think", "answer"]


@pytest.mark.covers("flywheel-15")
async def test_hint_after_the_answer_step_removes_the_answer(world: World) -> None:
    parent = await world.rolled(STEPS)
    edit = await HintAfterStep().apply(world.bench(parent, critic=["Step: 3"], policy=["</think>" + FINISH]))
    assert edit.trajectory.text.endswith(
        f"</result><think>So it is Z.\nIt is \\boxed{{Z}}\n{edit.text}</think>{FINISH}"
    )
    check_prefix(edit.trajectory, parent, 7, world)


RESULT_A = "<result>search found: A</result>"
TAILS = [
    pytest.param(STEPS, "<think>So it is Z.\nIt is \\boxed{Z}\n", id="a-think-and-answer"),
    pytest.param(["<think>t</think><answer>Z</answer>"], "<think>t\nZ\n", id="a-nothing-between-thought-and-answer"),
    pytest.param(
        [STEPS[0], "<answer>It is \\boxed{Z}</answer>"], "<think>It is \\boxed{Z}\n", id="b-answer-without-think"
    ),
    pytest.param(["<answer>Z</answer>"], "<think>Z\n", id="b-answer-alone"),
    pytest.param([STEPS[0], "<think>So.</think><answer>It is"], "<think>So.\nIt is\n", id="c-no-closing-answer"),
    pytest.param([STEPS[0], ("<think>So it", "length")], "<think>So it\n", id="c-open-thought"),
    pytest.param(["It is Z, I am sure."], "<think>It is Z, I am sure.\n", id="d-plain-text"),
    pytest.param([STEPS[0], "It is Z. \n"], "<think>It is Z. \n", id="d-ends-with-white-space"),
    pytest.param(
        [STEPS[0], "\n\n<think>So.</think>\n\n<answer>Z</answer>"], "\n\n<think>So.\n\nZ\n", id="white-space-first"
    ),
    pytest.param([STEPS[0], "So. <think>t</think>"], "<think>So. t\n", id="words-first"),
    pytest.param([STEPS[0], "<think>a</think><think>b</think> <result>fake</result>"], "<think>a\nb fake\n", id="fake"),
    pytest.param([""], "<think>", id="nothing-at-all"),
    pytest.param([STEPS[0], ""], "<think>", id="ends-with-a-result"),
]


@pytest.mark.covers("flywheel-16")
@pytest.mark.parametrize(("turns", "tail"), TAILS)
async def test_hint_at_the_tail_keeps_all_text_in_one_open_thought(
    world: World, turns: list[str | tuple[str, str]], tail: str
) -> None:
    parent = await world.rolled([*turns, ""])
    edit = await HintAtTail().apply(world.bench(parent, policy=[f" Yes.</think>{NEW_STEP}", FINISH]))
    results = [index for index, segment in enumerate(parent.segments, 1) if segment.kind == RESULT]
    end = results[-1] if results else 0
    kept = render(parent.segments[:end]) + tail + edit.text
    assert edit.text in HINTS
    assert edit.trajectory.text.startswith(kept)
    assert edit.trajectory.text.removeprefix(kept) == f" Yes.</think>{NEW_STEP}<result>search found: Y</result>{FINISH}"
    check_prefix(edit.trajectory, parent, end, world)
    check_contexts(world, edit.trajectory, kept)
    assert edit.step is None
    assert edit.trajectory.status == "answered"
    thought = tokenise(kept, TOOL_DIALECT)[-1]
    assert (thought.kind, thought.text.endswith("</think>")) == ("think", False)


@pytest.mark.covers("flywheel-16")
async def test_refused_call_in_the_tail_becomes_text_and_frees_its_allowance(world: World) -> None:
    world.settings = environment(
        search={"max_calls": 1}, on_limit="silent", on_unmarked="continue", continuation_calls=1
    )
    parent = await world.rolled(
        [STEPS[0], "<think>More.</think><search>Q</search>", "<think>No.</think><answer>Z</answer>"]
    )
    assert [call.status for call in parent.calls] == ["ok", "refused"]
    edit = await HintAtTail().apply(world.bench(parent, policy=[f"</think>{NEW_STEP}", FINISH]))
    kept = f"{STEPS[0]}{RESULT_A}<think>More.\nQ\nNo.\nZ\n{edit.text}"
    assert edit.trajectory.text == f"{kept}</think>{NEW_STEP}<result>search found: Y</result>{FINISH}"
    assert [(call.argument, call.status) for call in edit.trajectory.calls] == [("A", "ok"), ("Y", "ok")]
    assert world.tools["search"].arguments == ["Y"]
    check_prefix(edit.trajectory, parent, 3, world)


@pytest.mark.covers("flywheel-15", "flywheel-31")
async def test_hint_is_drawn_by_seed_from_the_given_pool() -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    drawn = [(await HintAtTail().apply(world.bench(parent, seed=seed))).text for seed in range(12)]
    assert drawn == [HINTS[derive_seed(seed, "choose", "hint") % 3] for seed in range(12)]
    assert set(drawn) == set(HINTS)
    other = await HintAtTail().apply(world.bench(parent, hints=["Use Python."]))
    assert other.text == "Use Python."


async def test_reflection_adds_a_paragraph_to_the_reopened_thought(world: World) -> None:
    parent = await world.rolled(STEPS)
    bench = world.bench(parent, refiner=[" I took Y for Z.\n\nThe end."], policy=["</think>" + FINISH])
    edit = await Reflection().apply(bench)
    paragraph = "Let me check what I have done so far. I took Y for Z."
    assert edit.text == paragraph
    assert edit.trajectory.text.endswith(f"<think>So it is Z.\nIt is \\boxed{{Z}}\n{paragraph}</think>{FINISH}")
    assert world.scripts["refiner"].prompts()[0].endswith("assistant\nLet me check what I have done so far.")
    assert f"<trajectory>\n{parent.text}\n</trajectory>" in world.scripts["refiner"].prompts()[0]
    check_prefix(edit.trajectory, parent, 7, world)


@pytest.mark.parametrize(
    ("reply", "reason"), [("", "empty_reflection"), (" so </think><answer>Y</answer>", "marker_in_reflection")]
)
async def test_reflection_that_is_not_a_paragraph_makes_no_trajectory(reply: str, reason: str) -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    assert (await rejected(Reflection(), world.bench(parent, refiner=[reply]))).reason == reason
