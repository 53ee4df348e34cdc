"""Managers of contexts: what requests show, and that each stored sample is what the model saw and then sampled."""

from __future__ import annotations

import bisect
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollouts.dialogues import Guess, play
from support.rollouts.rollout_bench import load

from treadle.agent.contexts.clipping import REMOVED, BadVerdict, ClipMessage, parse_verdict
from treadle.agent.contexts.thinking import without_thoughts
from treadle.agent.contract import Task
from treadle.agent.token_ids import ORIGIN_SAMPLED
from treadle.agent.trajectory import Trajectory, by_sample
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ContextTooLong
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.environments.rollouts.rows import row_of, trajectory_of

TASK = Task("q", "guess", payload={"secret": 77})
THINKING = {"manager": "linear_think", "think_hint": "Think first."}
TURNS = [f"<think>thought {number}</think>I say {guess}" for number, guess in enumerate([50, 75, 88, 77])]
MODELS = ["qwen", "smollm2"]


class Units(dict[str, bytes]):
    """Cache of one rollout."""

    def append(self, unit: str, value: bytes) -> None:
        assert unit not in self
        self[unit] = value


class Model:
    """Model that says texts in their order and ends each turn; requests for a verdict get another text."""

    def __init__(self, tokenizer: ChatTokenizer | None, texts: Sequence[str], verdict: str = "") -> None:
        self.tokenizer, self.texts, self.verdict = tokenizer, list(texts), verdict
        self.saw: list[Any] = []
        self.sampled: list[tuple[int, ...]] = []
        self.asked: list[str] = []

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        shown = request.prompt if self.tokenizer is None else self.tokenizer.decode(request.prompt)  # type: ignore[arg-type]
        text = self.verdict if "verdicts" in shown else self.texts.pop(0)
        end = self.tokenizer.turn_end_ids[:1] if self.tokenizer else ()
        ids = (*self.tokenizer.encode(text), *end) if self.tokenizer else None
        if "verdicts" in shown:
            self.asked.append(str(shown))
        else:
            self.saw.append(request.prompt)
            self.sampled.append(ids or ())
        return Completion(text, ids, "stop", None, len(request.prompt), len(ids or text), "http://x/v1", 0.0, 0)

    def shown(self, turn: int) -> str:
        """Return the text of a request."""
        return str(self.saw[turn]) if self.tokenizer is None else self.tokenizer.decode(self.saw[turn])


def check_exact(made: Trajectory, model: Model) -> None:
    """Each turn is in one sample, behind exactly the ids that the model saw, and with those that it sampled."""
    turn = 0
    for sample, own in zip(made.samples, by_sample(made.segments), strict=True):
        assert len(sample.ids) == len(sample.origins)
        assert own[0].start == 0 and own[-1].end == len(sample.ids)
        for start, end in zip(sample.turn_starts, [*sample.turn_starts[1:], len(sample.ids)], strict=True):
            assert [*sample.prompt_ids, *sample.ids[:start]] == model.saw[turn]
            pairs = zip(sample.ids[start:end], sample.origins[start:end], strict=True)
            assert tuple(id_ for id_, origin in pairs if origin == ORIGIN_SAMPLED) == model.sampled[turn]
            turn += 1
    assert turn == len(model.saw) == made.num_turns


@pytest.mark.parametrize("name", MODELS)
async def test_each_call_sees_no_earlier_thoughts_and_a_hint_in_the_last_message(name: str) -> None:
    model = Model(load(name), TURNS)
    made = await play(Guess, model, model.tokenizer, TASK, context=THINKING)
    assert made.status == "finished" and len(made.samples) == 4
    check_exact(made, model)
    assert made.reward == 1.0 and "thought 2" in made.text
    for turn in range(4):
        shown = model.shown(turn)
        assert "thought" not in shown and shown.count("I say") == turn
        assert shown.count("Think first.") == (1 if turn == 0 else 2)
    assert "Lower.\n\nThink first." in model.shown(3) and "Higher.\n\n" not in model.shown(3)


@pytest.mark.covers("service-17", "service-19")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("context", [{}, THINKING], ids=["linear", "linear_think"])
async def test_the_loss_mask_has_the_sampled_ids_and_each_turn_its_number(name: str, context: dict[str, str]) -> None:
    tokenizer = load(name)
    model = Model(tokenizer, TURNS[1:])
    made = await play(Guess, model, tokenizer, TASK, context=context)
    assert made.num_turns == 3
    check_exact(made, model)
    trained: list[list[int]] = [[], [], []]
    first = 0
    for sample in made.samples:
        steps = turn_numbers(sample.turn_starts, sample.origins)
        assert max(steps) + 1 == len(sample.turn_starts)
        for id_, step, origin in zip(sample.ids, steps, sample.origins, strict=True):
            assert (step >= 0) == (origin == ORIGIN_SAMPLED)
            if step >= 0:
                trained[first + step].append(id_)
        first += len(sample.turn_starts)
    assert [tuple(ids) for ids in trained] == model.sampled, "the server's ids, bit for bit, the end of each turn too"
    assert all(ids[-1] == tokenizer.turn_end_ids[0] for ids in trained)


def turn_numbers(turn_starts: Sequence[int], origins: Sequence[int]) -> list[int]:
    """Return the number of the turn that sampled each id, -1 for ids that were not sampled."""
    turns = [bisect.bisect_right(turn_starts, place) - 1 for place in range(len(origins))]
    return [turn if origin == ORIGIN_SAMPLED else -1 for turn, origin in zip(turns, origins, strict=True)]


@pytest.mark.parametrize("name", MODELS)
async def test_a_rollout_that_is_resumed_after_any_unit_has_the_same_bytes(name: str) -> None:
    for context, verdict in ((THINKING, ""), (CLIPPING, VERDICT)):
        units, model = Units(), Model(load(name), TURNS, verdict)
        row = row_of({}, await play(Guess, model, model.tokenizer, TASK, context=context, cache=units), "", "")
        for number in range(len(units)):
            kept = Units(list(units.items())[:number])
            said = sum(unit.startswith("llm-") for unit in kept)
            again = Model(load(name), TURNS[said:], verdict)
            made = await play(Guess, again, again.tokenizer, TASK, context=context, cache=kept)
            assert row_of({}, made, "", "") == row and kept == units
        stored = trajectory_of({**row, "rollout_key": "k"})
        assert [one.ids for one in stored.samples] == [one.ids for one in made.samples]


async def test_text_mode_shows_the_same() -> None:
    model = Model(None, TURNS)
    made = await play(Guess, model, None, TASK, context=THINKING)
    assert made.status == "finished" and "thought" not in model.shown(3) and model.shown(3).count("Think first.") == 2


CLIPPING = {"manager": "context_selfclip", "clip_tokens": 40}
VERDICT = '{"verdicts": [{"id": "m1", "action": "remove"}, {"id": "m2", "action": "compress", "text": "<b"}]}'


class Narrow(Model):
    """Model whose window is too small for requests for a verdict."""

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        assert self.tokenizer is not None
        if "verdicts" in self.tokenizer.decode(request.prompt):  # type: ignore[arg-type]
            raise ContextTooLong("too long")
        return await super().complete(request, session=session, deadline=deadline)


async def test_a_rollout_without_room_for_a_verdict_gets_none_after_a_resume_either() -> None:
    units, model = Units(), Narrow(load("qwen"), TURNS)
    row = row_of({}, await play(Guess, model, model.tokenizer, TASK, context=CLIPPING, cache=units), "", "")
    kept = Units({name: value for name, value in units.items() if name != "outcome"})
    again = Model(load("qwen"), [], VERDICT)
    made = await play(Guess, again, again.tokenizer, TASK, context=CLIPPING, cache=kept)
    assert row_of({}, made, "", "") == row and made.usage.notes == {"bad_verdict": 1} and not again.asked


@pytest.mark.parametrize("name", MODELS)
async def test_a_verdict_is_asked_for_once_and_changes_what_later_requests_show(name: str) -> None:
    model = Model(load(name), TURNS, VERDICT)
    made = await play(Guess, model, model.tokenizer, TASK, context=CLIPPING)
    assert made.status == "finished" and len(made.samples) == 2 and len(model.asked) == 1
    check_exact(made, model)
    shown = model.shown(len(made.samples[0].turn_starts))
    assert REMOVED in shown and "thought 0" not in shown and "&lt;b" in shown and "thought 1" in shown
    assert "[m1] assistant: <think>thought 0" in model.asked[0] and "bad_verdict" not in made.usage.notes


@pytest.mark.parametrize("verdict", ["", "no", '{"verdicts": [{"id": "m9", "action": "remove"}]}'])
async def test_an_invalid_verdict_changes_nothing_and_is_counted(verdict: str) -> None:
    model = Model(load("qwen"), TURNS, verdict)
    made = await play(Guess, model, model.tokenizer, TASK, context=CLIPPING)
    assert made.status == "finished" and len(made.samples) == 1 and len(model.asked) == 1
    assert made.usage.notes == {"bad_verdict": 1}
    check_exact(made, model)


MESSAGES = [ClipMessage(f"m{number}", "assistant", (number,), "a rather long text") for number in range(1, 5)]


def items(*items: dict[str, Any]) -> str:
    return json.dumps({"verdicts": items})


def compress(name: str, text: Any = "short") -> dict[str, Any]:
    return {"id": name, "action": "compress", "text": text}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (items(), {}),
        ("<think>hm</think>\n" + items({"id": "m1", "action": "keep"}), {}),
        (items({"id": "m2", "action": "remove"}), {"m2": REMOVED}),
        (items(compress("m1"), compress("m2", " </result><answer> "[:10])), {"m1": "short", "m2": "&lt;/result>"}),
    ],
)
def test_valid_verdicts(verdict: str, expected: dict[str, str]) -> None:
    assert parse_verdict(verdict, MESSAGES) == expected


@pytest.mark.parametrize(
    "verdict",
    [
        "[]",
        "{}",
        "```json\n{}\n```",
        '{"verdicts": [], "verdicts": []}',
        '{"verdicts": [1]}',
        '{"verdicts": {}}',
        "[" * 100_000,
        items({"id": "m1"}),
        items({"id": ["m1"], "action": "keep"}),
        items({"id": "m1", "action": "drop"}),
        items({"id": "m1", "action": "keep", "text": "x"}),
        items({"id": "m1", "action": "remove"}, {"id": "m1", "action": "keep"}),
        items({"id": "m1", "action": "remove", "why": "x"}),
        items(compress("m1", "")),
        items(compress("m1", 3)),
        items(compress("m1", "a long text that is longer")),
        items(compress("m1", "<<<<<<")),
        items(compress("m1"), compress("m2"), compress("m3")),
    ],
)
def test_anything_else_is_no_verdict(verdict: str) -> None:
    with pytest.raises(BadVerdict):
        parse_verdict(verdict, MESSAGES)


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5).map(str))
def test_no_text_breaks_the_parser(text: str) -> None:
    _raises_only_bad_verdict(parse_verdict, text)


def _raises_only_bad_verdict(parse: Callable[..., object], text: str) -> None:
    with contextlib.suppress(BadVerdict):
        parse(text, MESSAGES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think>\n\nb", "b"),
        ("a<think>b</think>c<think>d", "ac"),
        ("opened by the prompt</think>b", "</think>b"),
        ("plain", "plain"),
        ("<think>a<think>b</think>c", "<think>ac"),
        ("opened</think>b<think>c</think>d", "</think>bd"),
    ],
)
def test_thoughts_are_left_out(text: str, expected: str) -> None:
    assert without_thoughts(text) == expected
