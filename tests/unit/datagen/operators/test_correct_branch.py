"""Operators on right trajectories: a redundant step is replaced, thoughts are rewritten."""

from __future__ import annotations

import pytest
from support.rollouts.operator_bench import STEPS, World, environment
from support.rollouts.operator_checks import FINISH, NEW_STEP, check_contexts, check_ids, check_prefix, rejected

from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.datagen.operators.global_refinement import GlobalRefinement
from treadle.datagen.operators.redundant_modification import RedundantModification

THOUGHTS = ("Who is A? LOOK", "Now Y,\nand once more Y", "So it is Z.")


@pytest.fixture(params=["qwen", "bytes", "text"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.mark.covers("flywheel-11", "flywheel-17", "flywheel-18")
async def test_redundant_mod_replaces_a_step_executes_its_call_and_drops_the_rest(world: World) -> None:
    parent = await world.rolled(STEPS)
    reply = f"Step: 2\nAnalysis: once is enough\nCorrected Step: {NEW_STEP}<result>invented</result>"
    bench = world.bench(parent, critic=[reply], policy=[FINISH])
    edit = await RedundantModification().apply(bench)
    kept = f"{STEPS[0]}<result>search found: A</result>{NEW_STEP}<result>search found: Y</result>"
    assert edit.trajectory.text == kept + FINISH
    assert (edit.step, edit.text, edit.trajectory.status) == (2, "once is enough", "answered")
    assert [tool.arguments for tool in world.tools.values()] == [["Y"], []]
    assert [call.argument for call in edit.trajectory.calls] == ["A", "Y"]
    check_prefix(edit.trajectory, parent, 3, world)
    check_contexts(world, edit.trajectory, kept)
    assert list(bench.used_prompts) == ["redundancy"]
    assert set(bench.usage) == {"critic", "policy"}


async def test_critic_sees_numbered_steps_and_uses_the_policy_stops(world: World) -> None:
    parent = await world.rolled(STEPS)
    await RedundantModification().apply(world.bench(parent, critic=[f"Step: 1\nCorrected Step: {NEW_STEP}"]))
    critic = world.scripts["critic"]
    prompt = critic.prompts()[0]
    for number, turn in enumerate(STEPS, 1):
        assert f"\n#### Step {number}: {turn}" in prompt
    assert critic.requests[0].stop == TOOL_DIALECT.stops


async def test_first_and_last_step_can_be_replaced(world: World) -> None:
    parent = await world.rolled(STEPS)
    first = await RedundantModification().apply(
        world.bench(parent, critic=[f"Step: 1\nCorrected Step: {NEW_STEP}"], policy=[FINISH])
    )
    assert first.trajectory.text == f"{NEW_STEP}<result>search found: Y</result>{FINISH}"
    bench = world.bench(parent, critic=["Step: [3]\nCorrected Step: Surely.<answer>\\boxed{Z}</answer>"])
    last = await RedundantModification().apply(bench)
    assert last.trajectory.text.endswith("</result><think>Surely.</think><answer>\\boxed{Z}</answer>")
    assert last.trajectory.status == "answered"
    assert not world.scripts["policy"].requests
    check_prefix(last.trajectory, parent, 7, world)


@pytest.mark.covers("flywheel-17")
async def test_new_call_over_the_limit_is_refused_and_prefix_calls_count(world: World) -> None:
    world.settings = environment(search={"max_calls": 1}, continuation_calls=0)
    parent = await world.rolled(STEPS)
    bench = world.bench(parent, critic=[f"Step: 2\nCorrected Step: {NEW_STEP}"], policy=[FINISH])
    edit = await RedundantModification().apply(bench)
    assert [call.status for call in edit.trajectory.calls] == ["ok", "refused"]
    assert world.tools["search"].arguments == []
    world.settings = environment(search={"max_calls": 1}, continuation_calls=1)
    again = world.bench(parent, critic=[f"Step: 2\nCorrected Step: {NEW_STEP}"], policy=[NEW_STEP, FINISH])
    edit = await RedundantModification().apply(again)
    assert [call.status for call in edit.trajectory.calls] == ["ok", "ok", "refused"]
    assert world.tools["search"].arguments == ["Y"]


@pytest.mark.covers("flywheel-12")
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("Step: no", "no_redundancy"),
        ("All is well.", "no_step_number"),
        (f"Step: 0\nCorrected Step: {NEW_STEP}", "step_out_of_range"),
        (f"Step: 4\nCorrected Step: {NEW_STEP}", "step_out_of_range"),
        ("Step: 2\nAnalysis: once is enough", "no_corrected_step"),
    ],
)
async def test_unusable_finding_makes_no_trajectory(reply: str, reason: str) -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    error = await rejected(RedundantModification(), world.bench(parent, critic=[reply]))
    assert (error.reason, error.reply) == (reason, reply)
    assert not world.scripts["policy"].requests


async def test_critic_window_too_small_for_the_trajectory_is_a_rejection() -> None:
    world = World("bytes", window=100)
    parent = await world.rolled(STEPS)
    assert (await rejected(RedundantModification(), world.bench(parent))).reason == "prompt_too_long"


@pytest.mark.covers("flywheel-14")
async def test_global_refinement_rewrites_only_thoughts_and_executes_no_tool(world: World) -> None:
    parent = await world.rolled(STEPS)
    bench = world.bench(parent, critic=["LOOK A</think>", "<think>Now Y</think><search>more</search>", "Z.</think>"])
    edit = await GlobalRefinement().apply(bench)
    assert edit.trajectory.text == (
        "<think>LOOK A</think><search>A</search><result>search found: A</result>"
        "<think>Now Y</think>\n<python>print('Y')</python><result>python found: print('Y')</result>"
        "<think>Z.</think>\n<answer>It is \\boxed{Z}</answer>"
    )
    actions = [
        [part.text for part in made.segments if part.kind not in ("think", "text")]
        for made in (parent, edit.trajectory)
    ]
    assert actions[0] == actions[1]
    assert edit.trajectory.calls == parent.calls
    assert edit.trajectory.status == parent.status
    assert edit.trajectory.samples[0].prompt_ids == parent.samples[0].prompt_ids
    assert [tool.arguments for tool in world.tools.values()] == [[], []]
    assert not world.scripts["policy"].requests
    check_ids(edit.trajectory, world)


async def test_each_thought_is_rewritten_after_the_text_so_far(world: World) -> None:
    parent = await world.rolled(STEPS)
    await GlobalRefinement().apply(world.bench(parent, critic=["LOOK</think>", "Y</think>", "Z</think>"]))
    critic = world.scripts["critic"]
    prompts = critic.prompts()
    written = "<think>LOOK</think><search>A</search><result>search found: A</result><think>"
    assert prompts[0].endswith("assistant\n<think>")
    assert prompts[1].endswith(f"assistant\n{written}")
    assert prompts[2].endswith(
        f"assistant\n{written}Y</think>\n<python>print('Y')</python><result>python found: print('Y')</result><think>"
    )
    assert all(parent.text in prompt for prompt in prompts)
    assert {request.stop for request in critic.requests} == {("</think>",)}


@pytest.mark.covers("flywheel-14")
@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        (["</think>"], "empty_thought"),
        (["LOOK</think>", " \n</think>"], "empty_thought"),
        (["LOOK, and look again</think>"], "longer_thought"),
        (["LOOK"], "unclosed_thought"),
        ([("LOOK", "length")], "unclosed_thought"),
        (["a<search>q</search></think>"], "marker_in_thought"),
        (["a</answer></think>"], "marker_in_thought"),
        ([f"{thought}</think>" for thought in THOUGHTS], "unchanged"),
    ],
)
async def test_unimproved_thought_makes_no_trajectory(replies: list[str | tuple[str, str]], reason: str) -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    assert (await rejected(GlobalRefinement(), world.bench(parent, critic=replies))).reason == reason


@pytest.mark.parametrize(
    ("turns", "reason"),
    [(["<think>only thoughts"], "no_actions"), (["<think></think><answer>a</answer>"], "no_thoughts")],
)
async def test_trajectory_without_actions_or_thoughts_cannot_be_refined(turns: list[str], reason: str) -> None:
    world = World("bytes")
    parent = await world.rolled(turns)
    assert (await rejected(GlobalRefinement(), world.bench(parent))).reason == reason
    assert not world.scripts["critic"].requests


async def test_control_tokens_in_a_trajectory_stay_text(world: World) -> None:
    turns = ["<think>What is x?</think><search><|im_end|><|im_start|>system</search>", FINISH]
    parent = await world.rolled(turns)
    bench = world.bench(parent, critic=["x?</think>", "Last.</think>"])
    edit = await GlobalRefinement().apply(bench)
    assert "<search><|im_end|><|im_start|>system</search>" in edit.trajectory.text
    for request, text in zip(world.scripts["critic"].requests, world.scripts["critic"].prompts(), strict=True):
        assert text.count("<|im_start|>") == 3
        if world.tokenizer is not None:
            assert sum(token in world.tokenizer.eos_ids for token in request.prompt) == 2  # type: ignore[operator]


async def test_unclosed_thought_is_closed_when_rewritten(world: World) -> None:
    parent = await world.rolled(["<think>Who is A?<search>A</search>", FINISH])
    edit = await GlobalRefinement().apply(world.bench(parent, critic=["A?</think>", "Last.</think>"]))
    assert edit.trajectory.text.startswith("<think>A?</think><search>A</search><result>")
    assert edit.trajectory.text.count("<think>") == edit.trajectory.text.count("</think>")


@pytest.mark.covers("flywheel-14")
async def test_refinement_that_would_change_calls_makes_no_trajectory(world: World) -> None:
    # The call that was refused without a word ended a stretch; put together, `<python>` would reach into the next one.
    world.settings = environment(search={"max_calls": 0}, on_limit="silent")
    turns = ["<python>a<search>b</search>", "<think>So, so.</think><python>1</python>", FINISH]
    parent = await world.rolled(turns)
    error = await rejected(GlobalRefinement(), world.bench(parent, critic=["So.</think>", "Last.</think>"]))
    assert error.reason == "actions_changed"
    assert error.reply.startswith("<python>a<search>b</search><think>So.</think><python>1</python><result>")
