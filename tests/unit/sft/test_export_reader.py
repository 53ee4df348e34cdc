"""Conversations that are exported and read back are those of the rows, whatever they contain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweep import examples
from support.tables.sft_tables import sft_row, table_of

from treadle.core.chat_tools import numbered_call_id
from treadle.core.errors import ConfigError
from treadle.sft.export_reader import read_export
from treadle.sft.exporters import export_rows
from treadle.sft.llamafactory_rows import read_sharegpt, sharegpt_record
from treadle.sft.openai_rows import openai_record, read_openai
from treadle.sft.row_text import RowText

PIECES = (
    "a", " ", "\n", "", "é", "\U0001f680", "\u2028", '"', "\\", "\\ud800", "{", "}", "[", "<", "&lt;", "\x00",
    "<tool_call>", "</tool_call>", "<tool_response>", "\n</tool_response>\n<tool_response>\n", "<think>\n",
    "\n</think>\n\n", "</think>", "<search>", "<|im_end|>", "{{content}}", '{"name": "f", "arguments": {}}',
    "<\u200btool_call>",
)  # fmt: skip
TEXT = st.lists(st.sampled_from(PIECES), max_size=4).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=5
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(TEXT, VALUES, max_size=3).map(lambda value: orjson.dumps(value).decode())
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,9}", fullmatch=True)
SCHEMA = st.fixed_dictionaries(
    {
        "name": NAMES,
        "description": TEXT,
        "parameters": st.just({}) | st.just({"type": "object", "properties": {"x": {"enum": ["<", 1]}}}),
    }
)
OTHER = st.tuples(st.sampled_from(["user", "tool", "system"]), TEXT)
TURN = st.tuples(
    TEXT,
    TEXT,
    st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3),
    st.lists(TEXT, max_size=4),
    st.lists(OTHER, max_size=2),
)


@st.composite
def conversations(draw: st.DrawFn) -> RowText:
    """Draw conversations as `sft_rows` has them: each begins with messages and ends with a turn."""
    messages: list[dict[str, Any]] = [
        {"role": role, "content": text}
        for role, text in draw(st.lists(st.tuples(st.sampled_from(["system", "user"]), TEXT), min_size=1, max_size=3))
    ]
    number = 0
    for content, reasoning, calls, results, others in draw(st.lists(TURN, max_size=3)):
        turn: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            turn["reasoning"] = reasoning
        ids = [numbered_call_id(number + place) for place in range(1, len(calls) + 1)]
        number += len(calls)
        if calls:
            turn["tool_calls"] = [
                {"id": identity, "name": name, "arguments": arguments}
                for identity, (name, arguments) in zip(ids, calls, strict=True)
            ]
        messages.append(turn)
        for place, text in enumerate(results):
            answered = {"tool_call_id": ids[place]} if place < len(ids) else {}
            messages.append({"role": "tool", "content": text, **answered})
        messages += [{"role": role, "content": text} for role, text in others]
    last = draw(TEXT)
    return RowText([*messages, {"role": "assistant", "content": last}], draw(st.lists(SCHEMA, max_size=2)))


@settings(max_examples=examples(400), deadline=None)
@given(conversations())
def test_written_and_read_back_rows_are_the_same(text: RowText) -> None:
    assert read_openai(orjson.loads(orjson.dumps(openai_record(text)))) == text
    record = orjson.loads(orjson.dumps(sharegpt_record(text)))
    assert read_sharegpt(record) == text
    sides = [turn["from"] for turn in record["conversations"]]
    assert len(sides) % 2 == 0
    assert {*sides[::2]} <= {"human", "observation"} and {*sides[1::2]} <= {"gpt", "function_call"}


WORDS = st.text("abc é\n", min_size=1, max_size=5)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.just("") | WORDS, st.just("") | WORDS, st.lists(WORDS, max_size=3)), max_size=3), WORDS)
def test_ordinary_rows_are_read_from_the_conversation_itself(
    turns: list[tuple[str, str, list[str]]], last: str
) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    number = 0
    for content, reasoning, arguments in turns:
        messages.append({"role": "assistant", "content": content, **({"reasoning": reasoning} if reasoning else {})})
        results = []
        for argument in arguments:
            number += 1
            identity, given_arguments = numbered_call_id(number), orjson.dumps({"q": argument}).decode()
            call = {"id": identity, "name": "f", "arguments": given_arguments}
            messages[-1].setdefault("tool_calls", []).append(call)
            results.append({"role": "tool", "content": f"found {argument}", "tool_call_id": identity})
        messages += results or [{"role": "user", "content": "Go on."}]
    tools = [{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}]
    text = RowText([*messages, {"role": "assistant", "content": last}], tools)
    record = sharegpt_record(text)
    assert record["original"] == "" and read_sharegpt(record) == text


@pytest.mark.parametrize("name", ["openai", "sharegpt"])
def test_folder_is_read_in_its_order(tmp_path: Path, name: str) -> None:
    rows = [sft_row("a"), sft_row("b"), sft_row("c", messages=json.dumps([{"role": "assistant", "content": "\u2028"}]))]
    table = table_of(tmp_path / "root", rows)
    export_rows(table, name, tmp_path / "out", origin={})
    assert list(read_export(tmp_path / "out")) == [RowText.of(row) for row in rows]
    with (tmp_path / "out" / f"{name}.jsonl").open("ab") as file:
        file.write(b'{"messages": 1, "original": "", "tools": "x"}\n')
    with pytest.raises(ConfigError, match=f"line 4 is no row of {name}"):
        list(read_export(tmp_path / "out"))


def test_other_folders_are_refused(tmp_path: Path) -> None:
    export_rows(table_of(tmp_path / "root", [sft_row("a")]), "alpaca", tmp_path / "alpaca", origin={})
    for folder in (tmp_path / "alpaca", tmp_path / "root", tmp_path / "none"):
        with pytest.raises(ConfigError, match="is no export of sft_rows in format openai or sharegpt"):
            list(read_export(folder))
