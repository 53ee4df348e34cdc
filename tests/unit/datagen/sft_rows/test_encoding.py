"""Ids, labels and messages of fine-tuning rows, from rollouts of the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.qwen_tokenizer import qwen_tokenizer
from support.rollouts.dialogues import Guess, Halving, play
from support.sweep import examples

from treadle.agent.call_cache import NullCache
from treadle.agent.contract import EpisodeOptions, Message, Task
from treadle.agent.dialects.free import FreeDialect
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.model_types import RolloutLimits
from treadle.agent.rollout import RolloutEngine
from treadle.agent.token_ids import ORIGIN_SYSTEM
from treadle.agent.trajectory import Trajectory
from treadle.agent.transcript import Transcript, split_reply
from treadle.api import Done, Environment, ModelTurn
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.datagen.sft_rows.encoding import NO_LOSS, IdColumns, RowEncoder, Turns, system_spans
from treadle.datagen.sft_rows.messages import messages_of
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.rollouts.rows import row_of
from treadle.environments.rollouts.tables import ROLLOUTS

SECRET = Task("k", "Guess.", payload={"secret": 37})
load = cache(ChatTokenizer.load)


@pytest.fixture(params=["qwen", "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return load(qwen_tokenizer() if request.param == "qwen" else embedded_tokenizer())


class Says:
    """A model that says these texts in turn; a text that ends with `|` ends without an end-of-turn id."""

    def __init__(self, tokenizer: ChatTokenizer | None, *texts: str) -> None:
        self._texts = list(texts)
        self._tokenizer = tokenizer

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        said = self._texts.pop(0)
        text = said.removesuffix("|")
        ids: tuple[int, ...] | None = None
        if self._tokenizer is not None:
            ids = (*self._tokenizer.encode(text), *(self._tokenizer.turn_end_ids[:1] if text == said else ()))
        return Completion(text, ids, "stop", None, len(request.prompt), 4, "http://x/v1", 0.1, 0)


class Quiet(Environment):
    """Ends without a last message after two turns."""

    async def step(self, turn: ModelTurn) -> str | Done:
        return "Next." if turn.number == 0 else Done(reward=1.0)


class Stops(Quiet):
    """Ends a turn at a marker too."""

    dialect = FreeDialect(("STOP",))


def turns_of(trajectory: Trajectory) -> Turns:
    (sample,) = trajectory.samples
    return Turns.of(trajectory.segments, sample.ids, bytes(sample.origins), TOOL_DIALECT)


def encoded(trajectory: Trajectory, tokenizer: ChatTokenizer, *, mask_results: bool = True) -> dict[str, list[int]]:
    encoder = RowEncoder.of(tokenizer, mask_results=mask_results)
    return encoder.columns(trajectory.samples[0].prompt_ids, turns_of(trajectory))


def learned(row: dict[str, list[int]], tokenizer: ChatTokenizer) -> str:
    return tokenizer.decode([label for label in row["labels"] if label != NO_LOSS])


async def test_dialogue_is_trained_on_in_all_turns_of_the_model_and_nothing_else(tokenizer: ChatTokenizer) -> None:
    trajectory = await play(Guess, Halving(tokenizer), tokenizer, SECRET)
    (sample,), row = trajectory.samples, encoded(trajectory, tokenizer)
    end = tokenizer.decode(tokenizer.turn_end_ids[:1])
    assert trajectory.num_turns > 2
    texts = [segment.text for segment in trajectory.segments if segment.kind == "text"]
    assert learned(row, tokenizer) == "".join(text + end for text in texts)
    labels = row["labels"][len(sample.prompt_ids) :]
    origins = sample.origins[: len(labels)]
    assert [label == NO_LOSS for label in labels] == [origin == ORIGIN_SYSTEM for origin in origins]
    assert row["input_ids"] == [*sample.prompt_ids, *sample.ids[: len(labels)]]
    assert "Right." in trajectory.text and "Right." not in tokenizer.decode(row["input_ids"])
    assert row["num_tokens"] == row["num_prompt_tokens"] + row["num_message_tokens"] + row["num_target_tokens"]


async def test_dialogue_reads_as_the_model_template_renders_it(tokenizer: ChatTokenizer) -> None:
    trajectory = await play(Guess, Halving(tokenizer), tokenizer, SECRET)
    messages = [*trajectory.first_messages, *turns_of(trajectory).messages]
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
    assert messages[2:4] == [{"role": "user", "content": "Lower."}, {"role": "assistant", "content": "I say 25"}]
    text = tokenizer.decode(encoded(trajectory, tokenizer)["input_ids"])
    assert text == tokenizer.render(messages, open_turn=False).removesuffix("\n")


@pytest.mark.parametrize("last", ["I say 2", "I say 2|", "I say 2 STOP"])
async def test_row_ends_with_one_end_of_turn(tokenizer: ChatTokenizer, last: str) -> None:
    """A sampled end counts; after a marker, or without one, the template's end is appended and learned."""
    trajectory = await play(Stops, Says(tokenizer, "I say 1", last), tokenizer, SECRET)
    row = encoded(trajectory, tokenizer)
    end, *rest = tokenizer.turn_end_ids
    is_sampled = last == "I say 2"
    assert row["input_ids"].count(end) - trajectory.samples[0].prompt_ids.count(end) == 3  # two turns, one reply
    assert row["input_ids"][-1:] == [end] if is_sampled else row["input_ids"][-1 - len(rest) :] == [end, *rest]
    assert learned(row, tokenizer).endswith(last.removesuffix("|") + tokenizer.decode([end]))
    assert row["num_tokens"] == len(row["input_ids"])


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (r"<think>a</think><answer>\boxed{1}</answer>", "answered"),
        ("<think>a</think> I do not know.", "no_answer"),
    ],
)
async def test_question_ends_with_one_end_of_turn(tokenizer: ChatTokenizer, said: str, status: str) -> None:
    """An end-of-turn id after an answer is dropped, one that ends a turn by itself is kept: neither is doubled."""
    environment = QuestionSettings()
    engine = RolloutEngine(Says(tokenizer, said), tokenizer, Sampling(), RolloutLimits(max_turns=3), TOOL_DIALECT)
    trajectory = await engine.roll_out(
        QuestionEpisode(environment, {}), Task("q", "Who?"), seed=1, deadline=math.inf, cache=NullCache()
    )
    end = tokenizer.turn_end_ids[0]
    assert trajectory.status == status
    assert trajectory.samples[0].ids.count(end) == (status == "no_answer")
    row = encoded(trajectory, tokenizer)
    assert row["input_ids"][row["num_prompt_tokens"] :].count(end) == 1
    assert learned(row, tokenizer) == said + tokenizer.decode([end])
    assert turns_of(trajectory).messages == [{"role": "assistant", "content": said}]


async def test_text_mode_has_messages_and_no_ids() -> None:
    reader = load(embedded_tokenizer())
    trajectory = await play(Guess, Halving(None), None, SECRET, renderer=reader)
    turns = turns_of(trajectory)
    with_ids = await play(Guess, Halving(reader), reader, SECRET)
    assert turns.messages == turns_of(with_ids).messages and len(turns.messages) > 4
    row = RowEncoder().columns([], turns)
    assert row["input_ids"] == row["labels"] == [] and row["num_tokens"] == 0


async def test_hint_is_in_no_row(tokenizer: ChatTokenizer) -> None:
    options = EpisodeOptions(hint="It is odd.")
    trajectory = await play(Guess, Halving(tokenizer), tokenizer, SECRET, options=options)
    plain = await play(Guess, Halving(tokenizer), tokenizer, SECRET)
    assert "It is odd." in tokenizer.decode(trajectory.samples[0].prompt_ids)
    assert trajectory.first_messages == plain.first_messages
    rows = [row_of({}, one, "e", "t")["samples"] for one in (trajectory, plain)]
    samples = pa.array([rows[0], [], rows[1]], ROLLOUTS.schema.field("samples").type)
    ids = IdColumns(pa.RecordBatch.from_arrays([samples], ["samples"]))
    assert ids.prompt_digest(0) == ids.prompt_digest(2) != ids.prompt_digest(1)
    assert (ids.num_prompt(0), ids.num_prompt(1)) == (len(plain.samples[0].prompt_ids), 0)


def test_results_inside_a_turn_can_be_learned_but_messages_never() -> None:
    tokenizer = load(embedded_tokenizer())
    transcript = Transcript(TOOL_DIALECT, tokenizer)
    said = "<think>a</think><search>q</search>"
    transcript.append_completion(said, tokenizer.encode(said), 9)
    transcript.append([Message("<result>found</result>", "block"), Message("Go on.", "tool")])
    last = r"<think>b</think><answer>\boxed{1}</answer>"
    transcript.append_completion(last, tokenizer.encode(last), 9)
    transcript.append([Message("<result>late</result>", "block")])
    turns = Turns.of(transcript.segments(), transcript.ids.tolist(), bytes(transcript.origins), TOOL_DIALECT)
    assert [(message["role"], message["content"]) for message in turns.messages] == [
        ("assistant", said + "<result>found</result>"), ("tool", "Go on."), ("assistant", last),
    ]  # fmt: skip
    masked, plain = (RowEncoder.of(tokenizer, mask_results=masks).columns([7], turns) for masks in (True, False))
    end = tokenizer.decode(tokenizer.turn_end_ids[:1])
    assert learned(masked, tokenizer) == said + last + end
    assert learned(plain, tokenizer) == said + "<result>found</result>" + last + end
    assert plain["num_target_tokens"] - masked["num_target_tokens"] == masked["num_result_tokens"] > 0


PIECES = ["a", " ", "\n", "é", "東", "\U0001f680", "<|im_end|>", "<result>", "I say 1"]
TEXT = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
TURN = st.tuples(TEXT, st.booleans(), st.lists(st.tuples(st.sampled_from(["user", "system"]), TEXT), max_size=2))


@settings(max_examples=examples(150))
@given(st.lists(TURN, min_size=1, max_size=4))
def test_what_is_learned_is_what_the_model_wrote(spoken: Sequence[tuple[str, bool, Sequence[tuple[str, str]]]]) -> None:
    tokenizer = load(embedded_tokenizer())
    eos, transcript = tokenizer.turn_end_ids[0], Transcript(FreeDialect(), tokenizer)
    written = b""
    for text, is_ended, replies in spoken:
        ids = [*tokenizer.encode(text), *([eos] if is_ended else [])]
        transcript.append_completion(text, ids, len(ids))
        written += text.encode()
        transcript.append([Message(reply, role) for role, reply in replies])  # type: ignore[arg-type]
    transcript.seal()
    origins = bytes(transcript.origins)
    turns = Turns.of(transcript.segments(), transcript.ids.tolist(), origins, FreeDialect())
    row = RowEncoder.of(tokenizer, mask_results=True).columns([5, 6], turns)
    targets = [label for label in row["labels"] if label != NO_LOSS] if turns.ids else []
    sampled = [token for token, origin in zip(transcript.ids, origins, strict=True) if origin != ORIGIN_SYSTEM]
    assert targets[: len(sampled)] == sampled and targets[len(sampled) :] in ([], [eos])
    assert tokenizer.decode([token for token in targets if token != eos]).encode() == written
    assert not turns.ids or targets[-1] == eos
    assert all(label in (NO_LOSS, token) for label, token in zip(row["labels"], row["input_ids"], strict=True))
    counts = [row[f"num_{part}_tokens"] for part in ("prompt", "result", "message", "target")]
    assert sum(counts) == row["num_tokens"] == len(row["input_ids"])
    assert "".join(one["content"] for one in turns.messages if one["role"] == "assistant").encode() == written
    assert not turns.messages or turns.messages[-1]["role"] == "assistant"


def test_turn_without_text_is_an_empty_message() -> None:
    tokenizer = load(embedded_tokenizer())
    transcript = Transcript(FreeDialect(), tokenizer)
    for text in ("a", "", "b"):
        transcript.append_completion(text, [*tokenizer.encode(text), tokenizer.turn_end_ids[0]], 1)
        transcript.append([Message("Say more.")])
    said = [
        message["content"] for message in messages_of(transcript.segments(), bytes(transcript.origins), FreeDialect())
    ]
    assert said == ["a", "Say more.", "", "Say more.", "b"]


def test_message_that_the_template_strips_holds_no_frame() -> None:
    def write(messages: Sequence[Mapping[str, str]]) -> str:
        return f"<|im_end|>\n<|im_start|>user\n{messages[0]['content'].strip()}<|im_end|>\n<|im_start|>assistant\n"

    text = write([{"role": "user", "content": " Higher.\n"}])
    pieces = split_reply(text, [("user", " Higher.\n")], write)
    assert pieces[1] == ("user", "Higher.") and [kind for kind, _ in pieces] == ["frame", "user", "frame"]
    assert "".join(piece for _, piece in pieces) == text


def test_spans_of_the_system_are_runs() -> None:
    assert system_spans(bytes([0, 0, 1, 2, 0, 1])) == [(0, 2), (4, 5)]
    assert system_spans(b"") == []
