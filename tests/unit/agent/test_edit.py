"""Trajectories with something put into them, on real ids."""

from __future__ import annotations

import pytest
from support.rollouts.operator_bench import STEPS, World

from treadle.agent.dialects.base import RESULT, render
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.edit import Piece, assembled, empty_prefix, extended
from treadle.agent.token_ids import ORIGIN_REENCODED, ORIGIN_SYSTEM


@pytest.fixture(params=["qwen", "bytes", "text"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.mark.parametrize("num_segments", [0, 3, 7])
@pytest.mark.parametrize("text", ["<think>Wait,", "<think>a</think><search>b</search>", "<think>é\n</think> so"])
async def test_extended_prefix_keeps_parent_ids_and_adds_only_text_ids(
    world: World, num_segments: int, text: str
) -> None:
    parent = await world.rolled(STEPS)
    before = parent.prefix(num_segments, world.tokenizer, TOOL_DIALECT) if num_segments else empty_prefix()
    after = extended(before, text, world.tokenizer, TOOL_DIALECT)
    assert after.text == render(parent.segments[:num_segments]) + text
    assert after.segments[:num_segments] == before.segments
    assert (after.calls, after.turn) == (before.calls, before.turn)
    assert after.pending == text.endswith("</search>")
    if world.tokenizer is not None:
        new = world.tokenizer.encode(text)
        assert after.ids == (*before.ids, *new)
        assert after.ids[: len(before.ids)] == tuple(parent.samples[0].ids[: len(before.ids)])
        assert after.origins == (*before.origins, *[ORIGIN_REENCODED] * len(new))


async def test_inserted_answer_is_pending(world: World) -> None:
    assert extended(empty_prefix(), "<answer>x</answer>", world.tokenizer, TOOL_DIALECT).pending


@pytest.mark.parametrize("num_segments", [2, 9])
async def test_trajectory_ending_in_a_call_or_answer_cannot_be_extended(world: World, num_segments: int) -> None:
    parent = await world.rolled(["<think>a</think><search>b</search>", "<think>c</think>", ""])
    whole = await world.rolled(STEPS)
    prefix = (parent if num_segments == 2 else whole).prefix(
        num_segments if num_segments == 2 else len(whole.segments), world.tokenizer, TOOL_DIALECT
    )
    with pytest.raises(ValueError, match="cannot be extended"):
        extended(prefix, "more", world.tokenizer, TOOL_DIALECT)


async def test_text_continuing_an_open_thought_joins_its_segment(world: World) -> None:
    parent = await world.rolled([STEPS[0], "<think>So it"])
    prefix = extended(
        parent.prefix(4, world.tokenizer, TOOL_DIALECT), "<think> is.</think>", world.tokenizer, TOOL_DIALECT
    )
    assert [segment.kind for segment in prefix.segments] == ["think", "search", RESULT, "think", "think"]
    once = extended(
        extended(empty_prefix(), "<think>So", world.tokenizer, TOOL_DIALECT),
        " it is.</think>",
        world.tokenizer,
        TOOL_DIALECT,
    )
    assert [segment.text for segment in once.segments] == ["<think>So it is.</think>"]


async def test_combined_pieces_equal_text_written_at_once(world: World) -> None:
    parent = await world.rolled(STEPS)
    pieces: list[Piece] = [
        ("system" if segment.kind == RESULT else "model", segment.text) for segment in parent.segments
    ]
    made = assembled(parent, pieces, parent.calls[:1], world.tokenizer, TOOL_DIALECT)
    assert made.text == parent.text
    assert [(part.kind, part.text) for part in made.segments] == [(part.kind, part.text) for part in parent.segments]
    assert (made.calls, made.usage.num_requests) == (parent.calls[:1], 0)
    assert (made.status, made.samples[0].prompt_ids) == (parent.status, parent.samples[0].prompt_ids)
    assert parent.usage.num_requests == 3
    if world.tokenizer is not None:
        assert world.tokenizer.decode(made.samples[0].ids) == parent.text
        for segment in made.segments:
            origin = ORIGIN_SYSTEM if segment.kind == RESULT else ORIGIN_REENCODED
            assert set(made.samples[0].origins[segment.start : segment.end]) == {origin}
            assert world.tokenizer.decode(made.samples[0].ids[segment.start : segment.end]) == segment.text
