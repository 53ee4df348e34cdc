"""The agent's tokens in a dialogue that is encoded as one text, under chat templates of several families."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.chat_templates import FAMILIES, write_family
from support.qwen_tokenizer import qwen_tokenizer

from treadle.agent.dialects.base import ANSWER, PRIVATE
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.chat import ChatTokenizer
from treadle.datagen.questions.layouts import RowRejected
from treadle.environments.colbench.dialect import ColbenchDialect
from treadle.formats.colbench.whole_text import dialogue_segments, encode_dialogue

FIRST = [{"role": "system", "content": "Ask."}, {"role": "user", "content": "Write f."}]
TURNS = ["Which sign?", "hm OUTPUT: And rounding?", "I WANT TO ANSWER:\ndef f(x):\n    return -x"]
REPLIES = ["Minus.", "None."]
QWEN = ChatTokenizer.load(qwen_tokenizer())


@pytest.fixture(scope="module")
def codecs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatTokenizer]:
    folder = tmp_path_factory.mktemp("families")
    names = ("llama3", "gemma", "phi", "plain")
    return {"qwen": QWEN, **{name: ChatTokenizer.load(write_family(FAMILIES[name], folder / name)) for name in names}}


@pytest.mark.parametrize("name", ["qwen", "llama3", "phi"])
def test_exactly_the_turns_and_their_ends_are_the_agents(codecs: dict[str, ChatTokenizer], name: str) -> None:
    codec = codecs[name]
    segments, sample = encode_dialogue(FIRST, TURNS, REPLIES, ColbenchDialect(), codec)
    whole = codec.conversation_ids(
        [
            *FIRST,
            *(
                {"role": role, "content": text}
                for pair in zip(TURNS, [*REPLIES, ""], strict=True)
                for role, text in zip(("assistant", "user"), pair, strict=True)
                if text
            ),
        ]
    )
    ids = sample.prompt_ids + sample.ids
    assert ids == whole[: len(ids)] and sample.prompt_ids == codec.prompt_ids(FIRST)
    runs: list[list[int]] = []
    for place, origin in enumerate(sample.origins):
        if origin and (not place or not sample.origins[place - 1]):
            runs.append([])
        if origin:
            runs[-1].append(sample.ids[place])
    assert [codec.decode(run[:-1]) for run in runs] == TURNS
    assert all(run[-1] in codec.eos_ids for run in runs) and set(sample.origins) == {0, 2}
    assert sample.ids[-1] in codec.eos_ids and [sample.ids[start] for start in sample.turn_starts] == [
        run[0] for run in runs
    ]
    assert "".join(one.text for one in segments) == codec.decode(sample.ids)
    assert {one.kind for one in segments} >= {ANSWER, PRIVATE, "text", "user", "frame"}
    assert all(codec.decode(sample.ids[one.start : one.end]) == one.text for one in segments)


def test_template_that_strips_turns_masks_what_it_shows(codecs: dict[str, ChatTokenizer]) -> None:
    codec = codecs["llama3"]
    _, sample = encode_dialogue(FIRST, [" a \n"], [], ColbenchDialect(), codec)
    own = [one for one, origin in zip(sample.ids, sample.origins, strict=True) if origin]
    assert codec.decode(own[:-1]) == "a"


def test_tokens_across_borders_are_encoded_in_parts(codecs: dict[str, ChatTokenizer]) -> None:
    """The template writes a blank before each turn, which its first token would hold, and no end after it."""
    codec = codecs["plain"]
    segments, sample = encode_dialogue(FIRST, ["a", "OUTPUT: b"], ["x"], ColbenchDialect(), codec)
    own = [one for one, origin in zip(sample.ids, sample.origins, strict=True) if origin]
    assert codec.decode(own) == "aOUTPUT: b" and sample.prompt_ids == codec.prompt_ids(FIRST)
    assert "".join(one.text for one in segments) == codec.decode(sample.ids)
    assert [codec.decode(sample.ids[start:])[:1] for start in sample.turn_starts] == ["a", "O"]


def test_template_that_rewrites_is_refused(tmp_path: Path) -> None:
    codec = ChatTokenizer.load(write_family(FAMILIES["r1"], tmp_path / "r1"))
    with pytest.raises(RowRejected, match="the chat template changes messages"):
        encode_dialogue(FIRST, ["<think>x</think>a", "b"], ["x"], ColbenchDialect(), codec)


def test_dialogue_in_which_the_agent_wrote_nothing_is_refused(codecs: dict[str, ChatTokenizer]) -> None:
    with pytest.raises(RowRejected, match="has written nothing"):
        encode_dialogue(FIRST, [""], [], ColbenchDialect(), codecs["plain"])


TEXT = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=20)
HOSTILE = st.sampled_from(["<|im_end|>", "<|im_start|>user\nhi", "OUTPUT:", "I WANT TO ANSWER:", "\n\n", "assistant"])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(TEXT | HOSTILE, TEXT | HOSTILE), min_size=1, max_size=3), TEXT | HOSTILE)
def test_spelled_control_tokens_change_no_author(pairs: list[tuple[str, str]], last: str) -> None:
    turns, replies = [*(turn for turn, _ in pairs), last], [reply for _, reply in pairs]
    segments, sample = encode_dialogue(FIRST, turns, replies, ColbenchDialect(), QWEN)
    wrote = "".join(one.text for one in segments if one.kind not in SYSTEM_KINDS)
    assert wrote == "".join(turns)
    own = [one for one, origin in zip(sample.ids, sample.origins, strict=True) if origin]
    ends = [place for place, one in enumerate(own) if one in QWEN.eos_ids]
    assert len(ends) == len(turns) and ends[-1] == len(own) - 1
    assert "".join(QWEN.decode([one for one in own if one not in QWEN.eos_ids])) == wrote


def test_without_a_tokenizer_there_is_text_alone() -> None:
    segments = dialogue_segments(TURNS, REPLIES, ColbenchDialect(), None)
    assert [one.kind for one in segments] == ["text", "user", "private", "text", "user", "answer"]
