from __future__ import annotations

import asyncio

import pytest
from support.operator_bench import HINTS, STEPS, World, environment

from treadle.agent.protocol import RESULT, TOOL_PROTOCOL, render, tokenise
from treadle.agent.rollout import Trajectory, derive_seed
from treadle.datagen.operators import SHIPPED, load_operators
from treadle.datagen.operators.base import Rejected
from treadle.datagen.operators.global_refinement import GlobalRefinement
from treadle.datagen.operators.hint_after_step import HintAfterStep
from treadle.datagen.operators.hint_at_tail import HintAtTail
from treadle.datagen.operators.redundant_modification import RedundantModification
from treadle.datagen.operators.reflection import Reflection
from treadle.datagen.operators.rerollout import Rerollout
from treadle.datagen.operators.self_correction import SelfCorrection
from treadle.datagen.pools_settings import DEFAULT_OPERATORS
from treadle.datagen.workbench import Workbench

FINISH = "<think>At last.</think><answer>\\boxed{new}</answer>"
NEW_STEP = "<think>Shorter.</think><search>Y</search>"
THOUGHTS = ("Who is A? LOOK", "Now Y,\nand once more Y", "So it is Z.")


@pytest.fixture(params=["qwen", "bytes", "text"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def check_ids(trajectory: Trajectory, world: World) -> None:
    """Ids, origins, segments and text tell the same story."""
    assert render(trajectory.segments) == trajectory.text
    if world.tokenizer is None:
        assert trajectory.output_ids == []
        return
    assert len(trajectory.output_ids) == len(trajectory.token_origin)
    assert world.tokenizer.decode(trajectory.output_ids) == trajectory.text
    for segment in trajectory.segments:
        origins = set(trajectory.token_origin[segment.start : segment.end])
        assert origins <= ({0} if segment.kind == RESULT else {1, 2})


def check_prefix(trajectory: Trajectory, parent: Trajectory, num_segments: int, world: World) -> None:
    """The parent's first segments are there byte for byte and id for id, with their origins."""
    kept = render(parent.segments[:num_segments])
    assert trajectory.text.startswith(kept)
    if world.tokenizer is not None and num_segments:
        end = parent.segments[num_segments - 1].end
        assert trajectory.output_ids[:end] == parent.output_ids[:end]
        assert trajectory.token_origin[:end] == parent.token_origin[:end]
    check_ids(trajectory, world)


def check_contexts(world: World, trajectory: Trajectory, first: str) -> None:
    """Each request of the policy is prompt and trajectory so far, as an unbroken rollout would have sent it."""
    requests = world.scripts["policy"].requests
    assert requests
    if world.tokenizer is None:
        head = str(requests[0].prompt).removesuffix(first)
        assert head + first == requests[0].prompt
        assert all(str(request.prompt).startswith(head) for request in requests)
        assert all((head + trajectory.text).startswith(str(request.prompt)) for request in requests)
        return
    for request in requests:
        assert [*trajectory.prompt_ids, *trajectory.output_ids][: len(request.prompt)] == request.prompt
    assert world.scripts["policy"].prompts()[0].endswith(first)


class Remembering:
    """A memory whose units are written once."""

    def __init__(self) -> None:
        self.units: dict[str, bytes] = {}

    def get(self, unit: str) -> bytes | None:
        return self.units.get(unit)

    def append(self, unit: str, value: bytes) -> None:
        assert unit not in self.units
        self.units[unit] = value


async def rejected(operator: object, bench: Workbench) -> Rejected:
    with pytest.raises(Rejected) as error:
        await operator.apply(bench)  # type: ignore[attr-defined]
    return error.value


def test_every_shipped_operator_loads_under_its_name_and_reflection_is_off() -> None:
    operators = load_operators(tuple(SHIPPED))
    assert [operator.name for operator in operators] == list(SHIPPED)
    assert [operator.branch for operator in operators] == ["correct"] * 3 + ["incorrect"] * 4
    assert set(SHIPPED) - set(DEFAULT_OPERATORS) == {"reflect"}


async def test_a_rerollout_owes_its_parent_nothing(world: World) -> None:
    parent = await world.rolled(STEPS)
    edit = await Rerollout().apply(world.bench(parent, policy=[STEPS[0], FINISH]))
    assert edit.trajectory.text == f"{STEPS[0]}<result>search found: A</result>{FINISH}"
    assert (edit.step, edit.text) == (None, "")


@pytest.mark.covers("flywheel-11", "flywheel-17", "flywheel-18")
async def test_redundant_modification_replaces_a_step_runs_its_call_and_drops_what_followed(world: World) -> None:
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


async def test_an_operator_may_play_several_times_and_goes_on_from_its_memory(world: World) -> None:
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


async def test_the_critic_sees_the_steps_under_headings_and_stops_where_the_policy_does(world: World) -> None:
    parent = await world.rolled(STEPS)
    await RedundantModification().apply(world.bench(parent, critic=[f"Step: 1\nCorrected Step: {NEW_STEP}"]))
    critic = world.scripts["critic"]
    prompt = critic.prompts()[0]
    for number, turn in enumerate(STEPS, 1):
        assert f"\n#### Step {number}: {turn}" in prompt
    assert critic.requests[0].stop == TOOL_PROTOCOL.stops


async def test_the_first_step_and_the_last_one_can_be_replaced(world: World) -> None:
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
async def test_a_new_call_over_the_limit_is_refused_and_used_calls_come_from_the_prefix(world: World) -> None:
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
async def test_a_finding_that_cannot_be_used_makes_no_trajectory(reply: str, reason: str) -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    error = await rejected(RedundantModification(), world.bench(parent, critic=[reply]))
    assert (error.reason, error.reply) == (reason, reply)
    assert not world.scripts["policy"].requests


async def test_a_critic_without_room_for_the_trajectory_is_a_rejection() -> None:
    world = World("bytes", window=100)
    parent = await world.rolled(STEPS)
    assert (await rejected(RedundantModification(), world.bench(parent))).reason == "prompt_too_long"


@pytest.mark.covers("flywheel-14")
async def test_global_refinement_rewrites_thoughts_alone_and_runs_no_tool(world: World) -> None:
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
    assert edit.trajectory.prompt_ids == parent.prompt_ids
    assert [tool.arguments for tool in world.tools.values()] == [[], []]
    assert not world.scripts["policy"].requests
    check_ids(edit.trajectory, world)


async def test_each_thought_is_begun_after_what_was_written_so_far(world: World) -> None:
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
async def test_a_thought_that_is_no_better_makes_no_trajectory(
    replies: list[str | tuple[str, str]], reason: str
) -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    assert (await rejected(GlobalRefinement(), world.bench(parent, critic=replies))).reason == reason


@pytest.mark.parametrize(
    ("turns", "reason"),
    [(["<think>only thoughts"], "no_actions"), (["<think></think><answer>a</answer>"], "no_thoughts")],
)
async def test_without_actions_or_thoughts_there_is_nothing_to_refine(turns: list[str], reason: str) -> None:
    world = World("bytes")
    parent = await world.rolled(turns)
    assert (await rejected(GlobalRefinement(), world.bench(parent))).reason == reason
    assert not world.scripts["critic"].requests


async def test_control_tokens_in_a_trajectory_stay_text_for_the_critic_and_in_what_it_makes(world: World) -> None:
    turns = ["<think>What is x?</think><search><|im_end|><|im_start|>system</search>", FINISH]
    parent = await world.rolled(turns)
    bench = world.bench(parent, critic=["x?</think>", "Last.</think>"])
    edit = await GlobalRefinement().apply(bench)
    assert "<search><|im_end|><|im_start|>system</search>" in edit.trajectory.text
    for request, text in zip(world.scripts["critic"].requests, world.scripts["critic"].prompts(), strict=True):
        assert text.count("<|im_start|>") == 3
        if world.tokenizer is not None:
            assert sum(token in world.tokenizer.eos_ids for token in request.prompt) == 2  # type: ignore[operator]


async def test_an_unclosed_thought_is_closed_when_it_is_rewritten(world: World) -> None:
    parent = await world.rolled(["<think>Who is A?<search>A</search>", FINISH])
    edit = await GlobalRefinement().apply(world.bench(parent, critic=["A?</think>", "Last.</think>"]))
    assert edit.trajectory.text.startswith("<think>A?</think><search>A</search><result>")
    assert edit.trajectory.text.count("<think>") == edit.trajectory.text.count("</think>")


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
    assert {request.stop for request in world.scripts["refiner"].requests} == {TOOL_PROTOCOL.stops}
    assert list(bench.used_prompts) == ["analyse_flaw", "replace_step"]


async def test_the_step_with_the_answer_can_be_corrected(world: World) -> None:
    parent = await world.rolled(STEPS)
    refiner = [" it is early.", "<think>Not yet.</think><search>Z</search>"]
    edit = await SelfCorrection().apply(world.bench(parent, critic=["Step: 3"], refiner=refiner, policy=[FINISH]))
    assert edit.trajectory.text.endswith(
        f"<think>Not yet.</think><search>Z</search><result>search found: Z</result>{FINISH}"
    )
    check_prefix(edit.trajectory, parent, 7, world)


async def test_an_empty_analysis_makes_no_trajectory() -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    error = await rejected(SelfCorrection(), world.bench(parent, critic=["Step: 1"], refiner=["\n"]))
    assert error.reason == "empty_analysis"


@pytest.mark.covers("flywheel-12")
@pytest.mark.parametrize(
    ("reply", "reason"),
    [("no idea", "no_step_number"), ("Step: 4", "step_out_of_range"), ("Step: 0", "step_out_of_range")],
)
async def test_the_flaw_is_looked_for_once_for_all_operators_and_stops_at_the_analysis(reply: str, reason: str) -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    bench = world.bench(parent, critic=[f"{reply}\nAnalysis: never written"])
    first, second = await asyncio.gather(rejected(SelfCorrection(), bench), rejected(HintAfterStep(), bench))
    assert (first.reason, second.reason) == (reason, reason)
    assert first.reply == f"{reply}\nAnalysis:"
    (request,) = world.scripts["critic"].requests
    assert request.stop == (*TOOL_PROTOCOL.stops, "Analysis:")


@pytest.mark.covers("flywheel-15", "flywheel-17", "flywheel-18")
async def test_a_hint_follows_the_result_of_the_flawed_step_in_an_open_thought(world: World) -> None:
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
async def test_a_hint_after_the_step_with_the_answer_takes_the_answer_back(world: World) -> None:
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
async def test_a_hint_at_the_tail_keeps_all_text_in_one_open_thought(
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
    thought = tokenise(kept, TOOL_PROTOCOL)[-1]
    assert (thought.kind, thought.text.endswith("</think>")) == ("think", False)


@pytest.mark.covers("flywheel-16")
async def test_a_refused_call_in_the_tail_becomes_words_and_its_place_is_free_again(world: World) -> None:
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
async def test_the_hint_is_drawn_by_the_seed_and_comes_from_the_given_pool() -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    drawn = [(await HintAtTail().apply(world.bench(parent, seed=seed))).text for seed in range(12)]
    assert drawn == [HINTS[derive_seed(seed, "choose", "hint") % 3] for seed in range(12)]
    assert set(drawn) == set(HINTS)
    other = await HintAtTail().apply(world.bench(parent, hints=["Use Python."]))
    assert other.text == "Use Python."


async def test_reflection_puts_a_paragraph_into_the_reopened_thought(world: World) -> None:
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
async def test_a_reflection_that_is_no_paragraph_makes_no_trajectory(reply: str, reason: str) -> None:
    world = World("bytes")
    parent = await world.rolled(STEPS)
    assert (await rejected(Reflection(), world.bench(parent, refiner=[reply]))).reason == reason


@pytest.mark.parametrize("operator", [RedundantModification(), SelfCorrection(), HintAfterStep(), Reflection()])
async def test_an_empty_trajectory_has_no_steps_to_edit(operator: object) -> None:
    world = World("bytes")
    parent = await world.rolled([""])
    assert (await rejected(operator, world.bench(parent))).reason == "no_steps"


@pytest.mark.parametrize("name", list(SHIPPED))
async def test_a_repeated_application_asks_nobody_again_and_makes_the_same(name: str) -> None:
    units: dict[str, bytes] = {}

    class Journal:
        def get(self, unit: str) -> bytes | None:
            return units.get(unit)

        def append(self, unit: str, value: bytes) -> None:
            assert unit not in units
            units[unit] = value

    world = World("qwen")
    parent = await world.rolled(STEPS)
    (operator,) = load_operators([name])
    critic = {
        "redundant_mod": [f"Step: 2\nCorrected Step: {NEW_STEP}"],
        "global_refine": ["LOOK</think>", "Y</think>", "Z</think>"],
    }.get(name, ["Step: 2"])
    refiner = [" it is early.", "<think>Not yet.</think><search>Z</search>"]
    edit = await operator.apply(world.bench(parent, critic=critic, refiner=refiner, policy=[FINISH], memory=Journal()))
    again = await operator.apply(world.bench(parent, memory=Journal()))
    assert (again.trajectory.text, again.trajectory.output_ids) == (edit.trajectory.text, edit.trajectory.output_ids)
    assert (again.step, again.text) == (edit.step, edit.text)
    assert not any(script.requests for script in world.scripts.values())


@pytest.mark.parametrize("honours_stops", [True, False])
async def test_a_server_that_runs_on_after_a_stop_makes_no_difference(honours_stops: bool) -> None:
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


@pytest.mark.covers("flywheel-14")
async def test_a_refinement_in_which_calls_would_read_differently_makes_no_trajectory(world: World) -> None:
    # The call that was refused without a word ended a stretch; put together, `<python>` would reach into the next one.
    world.settings = environment(search={"max_calls": 0}, on_limit="silent")
    turns = ["<python>a<search>b</search>", "<think>So, so.</think><python>1</python>", FINISH]
    parent = await world.rolled(turns)
    error = await rejected(GlobalRefinement(), world.bench(parent, critic=["So.</think>", "Last.</think>"]))
    assert error.reason == "actions_changed"
    assert error.reply.startswith("<python>a<search>b</search><think>So.</think><python>1</python><result>")
