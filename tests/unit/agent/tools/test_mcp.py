"""Settings, tool lists and results of MCP servers, without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult, TextContent, Tool

from treadle.agent.tools.mcp.entry import McpSettings
from treadle.agent.tools.mcp.listing import changes, tool_list
from treadle.agent.tools.mcp.results import outcome_of, shown
from treadle.core.config import config_folders, semantic_dump, validate
from treadle.core.errors import ConfigError

OBJECT: dict[str, Any] = {"type": "object"}


def settings(**keys: Any) -> McpSettings:
    return validate(McpSettings, {"command": ["server"], **keys})


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({}, "needs either command"),
        ({"command": ["x"], "url": "https://a.org/mcp"}, "needs either command"),
        ({"url": "https://user:pw@a.org/mcp"}, "no credentials"),
        ({"url": "ftp://a.org"}, "is not an http"),
        ({"url": "https://a.org/mcp", "network": True}, "network is for servers with a command only"),
        ({"url": "https://a.org/mcp", "read": ["/x"]}, "read is for servers with a command only"),
        ({"command": ["x"], "api_key_env": "A"}, "api_key_env is for servers with a url only"),
        ({"url": "https://a.org/mcp", "api_key_env": "sk-secret"}, "name of an environment variable"),
        ({"command": ["x"], "env": ["API_KEY=abc"]}, "API_KEY looks like a secret"),
        ({"command": ["x"], "env": ["PATH=/x"]}, "PATH is set by the sandbox"),
        ({"command": ["x"], "env": ["a b"]}, "names of environment variables"),
        ({"command": ["x"], "names": {"a": "b c"}}, "a tool cannot be named"),
        ({"command": ["x"], "timeout": 3}, "timeout"),
    ],
)
def test_settings_that_cannot_work_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        validate(McpSettings, keys)


def test_a_file_next_to_the_configuration_is_read_and_counts(tmp_path: Path) -> None:
    (tmp_path / "my_server.py").write_text("one")
    token = config_folders.set((tmp_path,))
    try:
        first = settings(command=[sys.executable, "my_server.py"], read=["my_server.py"])
        (tmp_path / "my_server.py").write_text("two")
        second = settings(command=[sys.executable, "my_server.py"], read=["my_server.py"])
    finally:
        config_folders.reset(token)
    assert first.started_command() == (sys.executable, str(tmp_path / "my_server.py"))
    assert semantic_dump(first) != semantic_dump(second)
    # What a run stores is read again elsewhere.
    assert validate(McpSettings, second.model_dump()).started_command() == second.started_command()


def test_a_file_that_the_server_cannot_see_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my_server.py").write_text("one")
    token = config_folders.set((tmp_path,))
    try:
        with pytest.raises(ConfigError, match=r"cannot see the file 'my_server.py' of its command; set read = \["):
            settings(command=[sys.executable, "my_server.py"])
        settings(command=[sys.executable, "my_server.py"], sandbox="none")
        settings(command=[sys.executable, "-m", "my_server"])
    finally:
        config_folders.reset(token)


def test_tools_are_named_after_the_entry_or_as_configured() -> None:
    listed = [Tool(name="add", input_schema=OBJECT), Tool(name="say it", input_schema=OBJECT)]
    tools, problems = tool_list("desk", listed, settings(names={"say it": "say"}))
    assert list(tools) == ["desk_add", "say"]
    assert tools.server_names == {"desk_add": "add", "say": "say it"}
    assert not problems


def _deep(levels: int) -> dict[str, Any]:
    return {"properties": {"x": _deep(levels - 1)}} if levels else {}


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([Tool(name="say it", input_schema=OBJECT)], "the model cannot be given the name 'desk_say it'"),
        ([Tool(name="x" * 64, input_schema=OBJECT)], "the model cannot be given the name"),
        ([Tool(name="a\x1b[2J\n", input_schema=OBJECT)], "the model cannot be given the name 'desk_a\\\\x1b[2J'"),
        ([Tool(name="a", input_schema=OBJECT)] * 2, "two tools would be named 'desk_a'"),
        ([Tool(name="a", input_schema={"type": "string"})], "not that of an object"),
        ([Tool(name="a", input_schema={"type": 3})], "not that of an object"),
        ([Tool(name="a", input_schema={"required": 3})], "its schema is invalid"),
        ([Tool(name="a", input_schema={"x": "y" * 40_000})], "more than 32768"),
        ([Tool(name="a", input_schema=_deep(40))], "more than 32 levels deep"),
        ([Tool(name="a", input_schema={"$ref": "http://169.254.169.254/x"})], "outside of a schema are not followed"),
        ([Tool(name="a", input_schema={"$ref": "file:///etc/passwd"})], "outside of a schema are not followed"),
        ([Tool(name="a", input_schema={"$ref": "#"})], "leads nowhere or to itself"),
        ([Tool(name="a", input_schema={"properties": {"<|im_end|>": {}}})], "control characters or control tokens"),
        ([Tool(name="a", input_schema={"properties": {"x": {"enum": ["\x1b"]}}})], "control characters"),
        ([Tool(name=f"a{number}", input_schema=OBJECT) for number in range(300)], "more than 256"),
    ],
)
def test_tools_that_cannot_be_offered_are_named(tools: list[Tool], problem: str) -> None:
    _, problems = tool_list("desk", tools, settings())
    assert len(problems) == 1
    assert problem in problems[0]
    assert problems[0].isprintable()


def test_texts_of_a_schema_are_cleaned_and_patterns_are_not_evaluated() -> None:
    schema = {
        "properties": {
            "city": {"type": "string", "description": "City <|im_end|>\0", "pattern": "(a+)+$"},
            "pattern": {"type": "string"},
            "description": {"type": "string"},
        },
        "patternProperties": {"(a+)+$": {}},
    }
    tools, problems = tool_list("desk", [Tool(name="a", description="A\0 tool </s>", input_schema=schema)], settings())
    assert not problems
    shown_schema = tools["desk_a"].parameters
    assert set(shown_schema["properties"]) == {"city", "pattern", "description"}
    assert "patternProperties" not in shown_schema
    assert "pattern" not in shown_schema["properties"]["city"]
    assert "<|im_end|>" not in str(shown_schema)
    assert "</s>" not in tools["desk_a"].description
    assert tools["desk_a"].argument_error({"city": "a" * 40 + "b"}) == ""


def test_changes_of_a_list_are_named() -> None:
    def tool(name: str, description: str = "", **schema: Any) -> dict[str, Any]:
        return {"name": name, "description": description, "parameters": schema}

    before = [tool("a"), tool("b"), tool("c"), tool("d")]
    after = [tool("a"), tool("b", type="object"), tool("c", "new"), tool("e")]
    assert changes(before, after) == "added: e; removed: d; other schema: b; other description: c"
    assert changes(before, before) == ""


def test_a_result_is_cleaned_and_cut() -> None:
    text = "\x1b[31mred\x1b[0m\u202e\0\x07 \r\nnext\ud800"
    result = CallToolResult.model_construct(
        content=[TextContent.model_construct(type="text", text=text)], structured_content=None, is_error=False
    )
    assert outcome_of(result, 100).text == "red \nnext?"
    assert len(shown("<|x|>" * 1000, 50)) == 50
    many = CallToolResult(content=[TextContent(type="text", text="x")] * 2000)
    assert outcome_of(many, 100_000).text.endswith("[1000 further parts are not shown]")
    assert outcome_of(CallToolResult(content=[]), 10).status == "empty"
    assert outcome_of(CallToolResult(content=[], is_error=True), 10).status == "error"
    huge = CallToolResult(content=[], structured_content={"x": 1 << 80})
    assert "not plain JSON" in outcome_of(huge, 100).text
