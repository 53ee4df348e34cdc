"""Operators edit native calls of a teacher over chat: as messages, with the calls and results that belong together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.model_servers.played_servers import SERVERS, Player
from support.rollouts.pools_agent import importable, operators_of
from support.rollouts.pools_bench import PoolsBench
from support.servers.hosted_service import hosted
from support.servers.scripted_server import Fault, Item, RecordedRequest, Reply
from support.tables.given_questions import TOKENIZER
from support.tables.pool_tables import make_rows
from support.tables.score_tables import question

from treadle.agent.chat_prompts import CONTINUE_BEGUN_MESSAGE
from treadle.agent.continuation import split_beginning
from treadle.agent.dialects.base import Segment
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import JobsPending
from treadle.datagen.sft_rows.messages import messages_of
from treadle.datagen.sft_rows.settings import SftRowsOptions
from treadle.datagen.sft_rows.student import StudentEncoder
from treadle.demo.embedded_model import embedded_tokenizer

CHAT = {role: {"model": {"api": "chat", "tokenizer": None}} for role in ("policy", "critic", "refiner", "judge")}
TOOLS = '''
def look(key: str) -> str:
    """Look a thing up."""
    return f"<result>{key} is a capital</result>"


def add(a: int, b: int) -> str:
    """Add numbers."""
    return str(a + b)
'''
EDITING = ("redundant_mod", "global_refine", "self_correct", "hint_step", "hint_tail", "reflect")


class Teacher:
    """Plays all roles: the policy calls two tools at once, then answers; `thinks` says where its thoughts are."""

    def __init__(self, answer: str, *, thinks: bool) -> None:
        self.answer, self.thinks = answer, thinks
        self.asked: list[str] = []
        self.policy: list[list[dict[str, Any]]] = []

    def __call__(self, request: RecordedRequest) -> Item:
        messages = request.messages or []
        if messages[0]["role"] != "system":
            return "x"
        system, number = messages[0]["content"], len(self.asked)
        _, begun = split_beginning(messages[-1]["content"] or "")
        for task, said in (
            ("You edit the reasoning", f"{begun}K{number}.</think>"),
            (
                "You look for redundancy",
                f"Step: 1\nAnalysis: w.\nCorrected Step: <think>S {number}.</think><look>X</look>",
            ),
            ("You look for the first flaw", "Step: 1\nAnalysis: it guesses"),
            ("You explain a flaw", f"{begun} it guesses."),
            ("You replace the last step", f'<think>R {number}.</think><add>{{"a": 2, "b": 3}}</add>'),
            ("You reflect", "I guessed too early."),
        ):
            if task in system:
                self.asked.append(task)
                return said
        self.asked.append("policy")
        self.policy.append(messages)
        return self._turn(messages, number)

    def _turn(self, messages: Sequence[dict[str, Any]], number: int) -> Reply:
        thought, reasoning = ("", f"Hidden {number}.") if self.thinks else (f"Seen {number}.", "")
        if messages[-1]["content"] == CONTINUE_BEGUN_MESSAGE:
            return Reply(f"{thought} It is \\boxed{{Paris}}.", reasoning=reasoning)
        if messages[-1]["role"] != "tool":
            calls = (("look", {"key": "A"}), ("add", {"a": 1, "b": 1}))
            return Reply(thought, calls=calls, reasoning=reasoning)
        answer, self.answer = self.answer, "Paris"
        return Reply(f"{thought} It is \\boxed{{{answer}}}.", reasoning=reasoning)


def check_conversation(messages: Sequence[dict[str, Any]]) -> None:
    """Fail unless services would take a conversation: each call has an own id and one result right after its turn."""
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert not waiting
        waiting = [call["id"] for call in message.get("tool_calls", ())]
        assert not seen & set(waiting) and len(set(waiting)) == len(waiting)
        seen |= set(waiting)
    assert not waiting


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize(("answer", "made"), [("Paris", EDITING[:2]), ("Rome", EDITING[2:])])
async def test_every_operator_edits_native_calls(
    tmp_path: Path, answer: str, made: tuple[str, ...], thinks: bool
) -> None:
    bench, teacher = PoolsBench(tmp_path / "pools", [{}]), Teacher(answer, thinks=thinks)
    tools = {name: {"type": f"native_tools:{name}"} for name in ("look", "add")}
    with importable(tmp_path, "native_tools", TOOLS):
        async with hosted(teacher) as service:
            options = {"rounds": 1, "operators": EDITING}
            record = await bench.make(service.url, roles=CHAT, environment={"tools": tools}, options=options)
    events = bench.rows(record, "pool_events")
    assert [event for event in events if event["outcome"] not in ("produced", "found")] == []
    rows = {row["operator"]: row for row in bench.rows(record)}
    assert list(rows) == ["initial", *made]
    for messages in teacher.policy:
        check_conversation(messages)
    dialect = FunctionsDialect().bound(None, is_chat=True)
    tokenizer = ChatTokenizer.load(embedded_tokenizer())
    for name, row in rows.items():
        assert "".join(one["text"] for one in row["segments"]) == row["text"] and row["status"] == "answered"
        messages = messages_of([Segment(**one) for one in row["segments"]], b"", dialect)
        check_conversation([{**one, "tool_call_id": one.get("tool_call_id")} for one in messages])
        assert [call["name"] for one in messages for call in one.get("tool_calls", ())] == [
            call["tool"] for call in row["tool_calls"]
        ]
        assert all(("reasoning" in one) == thinks for one in messages if one["role"] == "assistant"), name
        student = dialect.bound(tokenizer, is_chat=False)
        assert StudentEncoder(tokenizer).turns(messages, student).ids
        assert row["correct"] is (name != "initial" or answer == "Paris")
    chosen = SftRowsOptions(tokenizer=tokenizer.folder)
    stored = list(bench.run.rows(record.outputs["pools"]).rows())
    settings = {"tokenizer": tokenizer.folder, "tokenizer_digest": tokenizer.digest}
    given = {"environment": bench.instance("http://localhost:1/v1", environment={"tools": tools}).settings.environment}
    encoded = make_rows(tmp_path / "rows", [question("q00", ["Paris"])], stored, chosen, **settings, **given)
    right = [row["rollout_key"] for row in stored if row["correct"]]
    assert sorted(row["rollout_key"] for row in encoded.rows) == sorted(right)
    assert all(row["num_tokens"] == len(row["input_ids"]) > 0 for row in encoded.rows)
    initial = rows["initial"]["segments"]
    if answer == "Paris":
        assert [call["tool"] for call in rows["redundant_mod"]["tool_calls"]] == ["look"]
        actions = [one for one in initial if one["kind"] in ("tool_call", "tool")]
        refined = rows["global_refine"]["segments"]
        assert [one for one in refined if one["kind"] in ("tool_call", "tool")] == actions
        assert "K" in rows["global_refine"]["text"] and rows["global_refine"]["text"] != rows["initial"]["text"]
        return
    assert [call["argument"] for call in rows["self_correct"]["tool_calls"]] == ['{"a":2,"b":3}']
    # The flawed step is the first of two calls of a turn: it is kept with its own result alone.
    assert [call["tool"] for call in rows["hint_step"]["tool_calls"]] == ["look"]
    kept = [one for one in initial if one["kind"] == "tool"][:1]
    assert [one for one in rows["hint_step"]["segments"] if one["kind"] == "tool"] == kept
    for name in ("hint_step", "hint_tail", "reflect"):
        assert rows[name]["text"].count(rows[name]["edit_text"]) == 1
        asked = [one for one in teacher.policy if one[-1]["content"] == CONTINUE_BEGUN_MESSAGE]
        assert any(rows[name]["edit_text"] in one[-2]["content"] for one in asked)
    assert [call["tool"] for call in rows["hint_tail"]["tool_calls"]] == ["look", "add"]


async def test_edited_native_calls_resume_and_pay_no_answer_twice(tmp_path: Path) -> None:
    bench, teacher = PoolsBench(tmp_path / "pools", [{}]), Teacher("Rome", thinks=True)
    answered: list[str] = []
    down = [True]

    def shaky(request: RecordedRequest) -> Item:
        messages = request.messages or []
        if down[0] and messages[-1]["content"] == CONTINUE_BEGUN_MESSAGE:
            return Fault.status(500)
        if request.body.get("seed"):
            answered.append(json.dumps([request.body["seed"], messages]))
        return teacher(request)

    tools = {name: {"type": f"native_tools:{name}"} for name in ("look", "add")}
    asked: dict[str, Any] = {"roles": CHAT, "environment": {"tools": tools}}
    asked["options"] = {"rounds": 1, "operators": ["self_correct", "hint_step", "hint_tail"]}
    with importable(tmp_path, "native_tools", TOOLS):
        async with hosted(shaky) as service:
            with pytest.raises(JobsPending):
                await bench.make(service.url, **asked)
            down[0] = False
            record = await bench.make(service.url, **asked)
    assert operators_of(bench.rows(record)) == ["initial", "self_correct", "hint_step", "hint_tail"]
    assert len(answered) == len(set(answered)), "an answer that was recorded is not asked for again"


@pytest.mark.parametrize("name", ["DeepSeek, thinking", "Mistral"])
async def test_services_that_refuse_wrong_conversations_take_edited_ones(tmp_path: Path, name: str) -> None:
    (played,) = [one for one in SERVERS if one.name == name]
    bench, teacher = PoolsBench(tmp_path / "pools", [{}]), Teacher("Rome", thinks=False)
    tools = {name: {"type": f"native_tools:{name}"} for name in ("look", "add")}
    with importable(tmp_path, "native_tools", TOOLS):
        async with Player(played, teacher, TOKENIZER) as service:
            options = {"rounds": 1, "operators": EDITING[2:]}
            sampling = {"temperature": 1.0, "repetition_penalty": 1.0, "max_tokens": 512}
            roles = {role: {**settings, "sampling": sampling} for role, settings in CHAT.items()}
            record = await bench.make(service.url, roles=roles, environment={"tools": tools}, options=options)
    assert operators_of(bench.rows(record)) == ["initial", *EDITING[2:]]
    for messages in teacher.policy:
        check_conversation(messages)
