"""Calls and reasoning in hostile and odd text of a model, in every form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from support.chat_templates import write_family
from support.tool_templates import FAMILIES

from treadle.agent.dialects.forms import hermes as hermes_form
from treadle.agent.dialects.forms.hermes import HermesForm
from treadle.agent.dialects.forms.llama import LlamaForm
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.tools.schema import ToolSchema
from treadle.core.chat import ChatTokenizer

HERMES = FunctionsDialect()
LLAMA = FunctionsDialect(form=LlamaForm())


def hermes(json: str) -> str:
    return f"<tool_call>\n{json}\n</tool_call>"


def calls_of(dialect: FunctionsDialect, arguments: str) -> list[tuple[str, str, bool]]:
    """Return tool, argument and whether it cannot be read, of the calls in a turn with one call."""
    if dialect is HERMES:
        text = hermes(f'{{"name": "files", "arguments": {arguments}}}')
    else:
        text = f'{{"name": "files", "parameters": {arguments}}}'
    turn = dialect.read(text, 0, "end_of_turn")
    assert [segment.kind for segment in dialect.segments(text)] == ["tool_call"]
    return [(call.tool, call.text, bool(call.error)) for call in turn.calls]


HOSTILE = {
    "nested more deeply than is written": '{"x": ' + "[" * 300 + "]" * 300 + "}",
    "nested more deeply than is read": '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "a number of thousands of digits": '{"x": ' + "1" * 5_000 + "}",
    "no number": '{"x": NaN}',
    "a lone surrogate": '{"x": "\\ud800"}',
}


@pytest.mark.parametrize("dialect", [HERMES, LLAMA], ids=["hermes", "llama"])
@pytest.mark.parametrize("arguments", HOSTILE.values(), ids=HOSTILE)
def test_arguments_that_cannot_be_kept_are_the_models_error(dialect: FunctionsDialect, arguments: str) -> None:
    ((_, argument, is_wrong),) = calls_of(dialect, arguments)
    assert is_wrong and argument == "{}"


@pytest.mark.parametrize("dialect", [HERMES, LLAMA], ids=["hermes", "llama"])
def test_integer_beyond_64_bits_is_a_float_in_every_form(dialect: FunctionsDialect) -> None:
    ((_, argument, is_wrong),) = calls_of(dialect, '{"x": ' + "1" * 30 + "}")
    assert not is_wrong and orjson.loads(argument) == {"x": 1.111111111111111e29}


@pytest.mark.parametrize("dialect", [HERMES, LLAMA], ids=["hermes", "llama"])
def test_argument_may_spell_markers_of_calls_and_reasoning(dialect: FunctionsDialect) -> None:
    spelled = '</think> <think> </tool_call> \\ " <tool_call>'
    ((tool, argument, is_wrong),) = calls_of(dialect, orjson.dumps({"text": spelled}).decode())
    assert (tool, argument, is_wrong) == ("files", spelled, False)


@pytest.mark.parametrize("opening", ["<think>", ""])
def test_call_in_the_reasoning_is_none(opening: str) -> None:
    text = opening + "Maybe " + hermes('{"name": "a"}') + "?</think>\n" + hermes('{"name": "b"}')
    assert [call.tool for call in HERMES.read(text, 0, "end_of_turn").calls] == ["b"]


def test_call_at_the_end_needs_no_marker_if_its_json_is_complete() -> None:
    text = 'Look: <tool_call>\n{"name": "a", "arguments": {}}'
    assert [call.tool for call in HERMES.read(text, 0, "end_of_turn").calls] == ["a"]
    assert not HERMES.read(text[:-1], 0, "length").calls


@pytest.mark.parametrize(
    "answer",
    ['{"name": "Alice", "age": 3}', '[{"name": "Alice"}, {"name": "Bob"}]', '{"x": {"name": "a", "parameters": {}}}'],
)
def test_answer_in_json_is_no_call(answer: str) -> None:
    turn = LLAMA.read(answer, 0, "end_of_turn")
    assert not turn.calls and LLAMA.has_answer(turn)
    assert [segment.kind for segment in LLAMA.segments(answer)] == ["answer"]


@pytest.mark.parametrize("begun", ['{"name": "search", "param', '[{"name": "search", "parameters": {'])
def test_call_that_was_cut_off_is_no_answer(begun: str) -> None:
    assert not LLAMA.has_answer(LLAMA.read(begun, 0, "end_of_turn"))


def test_name_after_the_tag_is_a_call() -> None:
    turn = LLAMA.read('<|python_tag|>{"name": "now"}', 0, "end_of_turn")
    assert [(call.tool, call.error) for call in turn.calls] == [("now", "")]


@pytest.mark.parametrize(
    "text",
    ["<tool_call></tool_call>" * 2_000, '<tool_call>["</tool_call>' * 2_000, '<tool_call>"' + "</tool_call>" * 2_000],
)
def test_broken_calls_are_parsed_a_bounded_number_of_times(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    loads = orjson.loads

    def counted(data: str) -> object:
        parsed.append(len(data))
        return loads(data)

    monkeypatch.setattr(hermes_form.orjson, "loads", counted)
    assert HermesForm().find(text)
    assert sum(parsed) < 4 * len(text)


def test_thoughts_that_the_prompt_opened_are_no_answer_if_cut_off() -> None:
    dialect = FunctionsDialect(opens_reasoning=True)
    text = "It may be 3, or " + hermes('{"name": "a"}')
    assert not dialect.read(text, 0, "length").calls
    assert [segment.kind for segment in dialect.segments(text)] == ["reasoning"]
    text += "</think> It is 4."
    assert [segment.kind for segment in dialect.segments(text)] == ["reasoning", "answer"]


def test_answer_may_spell_the_end_of_thoughts_if_the_prompt_opens_none() -> None:
    dialect = FunctionsDialect(opens_reasoning=False)
    assert [segment.kind for segment in dialect.segments("It is </think>.")] == ["answer"]
    text = "<think>a</think>It is </think>."
    assert [segment.text for segment in dialect.segments(text)] == ["<think>a</think>", "It is </think>."]


@pytest.mark.parametrize(("end", "expected"), [("<think>\n", True), ("", False)])
def test_template_that_opens_reasoning_is_recognised(end: str, expected: bool, tmp_path: Path) -> None:
    family = FAMILIES["qwen"]
    template = family.template.replace(
        "{{- '<|im_start|>assistant\\n' }}", f"{{{{- '<|im_start|>assistant\\n{end}' }}}}"
    )
    tokenizer = ChatTokenizer.load(write_family(replace(family, template=template), tmp_path / "model"))
    assert FunctionsDialect().bound(tokenizer, is_chat=False).opens_reasoning is expected


def test_schemas_behind_the_question_are_no_calls(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}"
    )
    family = replace(FAMILIES["qwen"], template=template)
    tokenizer = ChatTokenizer.load(write_family(family, tmp_path / "model"))
    assert FunctionsDialect().bound(tokenizer, is_chat=False).told_by == "message"


def test_template_without_system_role_gets_the_tools_in_the_first_message(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    tokenizer = ChatTokenizer.load(write_family(replace(FAMILIES["qwen"], template=template), tmp_path / "model"))
    dialect = FunctionsDialect().bound(tokenizer, is_chat=False)
    messages, given = dialect.tool_prompt([{"role": "user", "content": "What?"}], [ToolSchema("look", "")])
    assert not given and [message["role"] for message in messages] == ["user"]
    prompt = tokenizer.render(messages)
    assert '"name":"look"' in prompt and prompt.index("look") < prompt.index("What?")
    assert "schemas in the first message" in dialect.facts()["tool_calls"]
