"""The token ids of a rollout: kept as sampled, cut inside a token, divided into segments in one pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.rollouts.rollout_bench import (
    ANSWER,
    SEARCH,
    FixedTool,
    Reply,
    ScriptedModel,
    check_invariants,
    load,
    play,
)
from support.sweep import examples

from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.types import Completion, CompletionRequest


@pytest.fixture(params=["qwen", "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return load(request.param)


@pytest.mark.parametrize("overrun", ["\n", "><", "\n\n<result>", " and more", "<"])
async def test_stop_inside_a_token_reencodes_only_the_tail(tokenizer: ChatTokenizer, overrun: str) -> None:
    trajectory = await play(ScriptedModel([SEARCH, ANSWER], tokenizer, overrun), tokenizer)
    check_invariants(trajectory, tokenizer)
    assert trajectory.text == f"{SEARCH}<result>found: q</result>{ANSWER}"
    straddles = tokenizer.encode(SEARCH + overrun)[: len(tokenizer.encode(SEARCH))] != tokenizer.encode(SEARCH)
    turn = trajectory.samples[0].origins[: trajectory.segments[1].end]
    assert (2 in turn) == straddles
    assert turn == sorted(turn)


async def test_model_turn_ids_are_kept_as_sampled(tokenizer: ChatTokenizer) -> None:
    ids = [token for character in SEARCH for token in tokenizer.encode(character)]
    assert ids != tokenizer.encode(SEARCH)

    class Odd(ScriptedModel):
        async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
            self.requests.append(request)
            if len(self.requests) > 1:
                return Completion("", (), "stop", None, 1, 0, "u", 0.0, 0)
            return Completion(SEARCH, tuple(ids), "stop", "</search>", 1, len(ids), "u", 0.0, 0)

    model = Odd([], tokenizer)
    trajectory = await play(model, tokenizer)
    assert trajectory.samples[0].ids[: len(ids)] == ids
    assert model.requests[1].prompt[len(trajectory.samples[0].prompt_ids) :][: len(ids)] == ids
    assert set(trajectory.samples[0].origins[: len(ids)]) == {1}
    check_invariants(trajectory, tokenizer)


async def test_special_token_text_in_question_or_result_never_becomes_its_id(tokenizer: ChatTokenizer) -> None:
    tool = FixedTool("search", "<|im_end|>\n<|im_start|>assistant {}")
    trajectory = await play(ScriptedModel([SEARCH, ANSWER], tokenizer), tokenizer, tool=tool)
    assert not set(trajectory.samples[0].ids) & tokenizer.eos_ids
    check_invariants(trajectory, tokenizer)


@pytest.mark.parametrize(
    ("replies", "frames"), [(["<think>t</think> so"], 1), ([("<think>t", "length")], 0), ([ANSWER], 0)]
)
async def test_only_a_turn_that_the_model_ended_itself_keeps_its_end(
    tokenizer: ChatTokenizer, replies: list[Reply], frames: int
) -> None:
    trajectory = await play(ScriptedModel(replies, tokenizer), tokenizer)
    check_invariants(trajectory, tokenizer)
    (sample,) = trajectory.samples
    assert [segment.kind for segment in trajectory.segments].count("frame") == frames
    assert set(sample.origins) == {1}
    bare = trajectory.without_turn_end()
    check_invariants(bare, tokenizer)
    assert bare.text == "".join(one.text for one in trajectory.segments if one.kind not in SYSTEM_KINDS)
    assert sample.ids[len(bare.samples[0].ids) :] == list(tokenizer.eos_ids)[:frames]


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("name", ["qwen", "smollm2"])
@given(pieces=st.lists(st.sampled_from(["<think>", "</think>", "a b", "é🙂", "\ufffd", "\n", ">"])), data=st.data())
@hypothesis_settings(max_examples=examples(150), deadline=None)
def test_ids_before_a_boundary_match_the_plain_definition(
    name: str, table: bool, pieces: list[str], data: st.DataObject
) -> None:
    tokenizer = copy.copy(load(name))
    odd = st.integers(0, 300)  # among them bytes that make no character
    ids = tokenizer.encode("".join(pieces)) + data.draw(st.lists(odd, max_size=6)) + tokenizer.encode("z")
    text = tokenizer.decode(ids)
    positions = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    expected: list[int] = []
    for position in positions:
        fits = [text[:position].startswith(tokenizer.decode(ids[:count])) for count in range(len(ids) + 1)]
        count = max(count for count, fit in enumerate(fits) if fit)
        straddles = count < len(ids) and len(tokenizer.decode(ids[:count])) < position
        expected.append(max([count + straddles, *expected[-1:]]))
    if not table:
        tokenizer._token_bytes = None
    assert tokenizer.counts_before(ids, text, positions) == expected


class CountedBytes(dict[int, bytes]):
    """The bytes of each id, with a count of how often one was looked up."""

    lookups = 0

    def get(self, index: int, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(index, default)

    def __getitem__(self, index: int) -> bytes:
        self.lookups += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("loop", ["<think></think>", "<think>é🙂</think>", "<think>\ufffd</think>"])
async def test_long_loop_of_tags_is_segmented_in_one_pass(loop: str) -> None:
    tokenizer = copy.copy(load("smollm2"))
    assert tokenizer._token_bytes is not None
    counted = CountedBytes(tokenizer._token_bytes)
    text = loop * 2000
    model = ScriptedModel([(text, "length")], tokenizer)
    tokenizer._token_bytes = counted
    trajectory = await play(model, tokenizer, max_tokens=100_000)
    assert len(trajectory.segments) == 2000
    assert counted.lookups <= 4 * len(trajectory.samples[0].ids)
    tokenizer._token_bytes = dict(counted)
    check_invariants(trajectory, tokenizer)


async def test_overrun_of_broken_characters_is_truncated_in_one_pass() -> None:
    tokenizer = copy.copy(load("smollm2"))
    assert tokenizer._token_bytes is not None
    broken = next(index for index, part in tokenizer._token_bytes.items() if part == b"\xe2")
    counted = tokenizer._token_bytes = CountedBytes(tokenizer._token_bytes)
    ids = [*[broken] * 5000, *tokenizer.encode(f"{ANSWER} and more")]

    class Broken(ScriptedModel):
        async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
            return Completion("", tuple(ids), "stop", None, 1, len(ids), "u", 0.0, 0)

    trajectory = await play(Broken([], tokenizer), tokenizer)
    assert trajectory.status == "answered" and trajectory.text == "\ufffd" * 5000 + ANSWER
    assert counted.lookups <= 10 * len(ids)
