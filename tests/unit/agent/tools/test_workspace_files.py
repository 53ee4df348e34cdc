"""Files and hidden tests of a task's payload, and the settings of its workspace."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from treadle.agent.contract import Outcome
from treadle.agent.tools.workspace.backend import CommandResult
from treadle.agent.tools.workspace.files import (
    BadTask,
    HiddenTests,
    check_payload,
    files_of,
    hidden_tests_of,
    packed,
    path_problem,
)
from treadle.agent.tools.workspace.hidden_tests import run_tests
from treadle.agent.tools.workspace.settings import WorkspaceSettings
from treadle.environments.tools.registry import TOOLS


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "..", "a/../../b", "a//b", "./a", "a/", "a\nb", "a\0", "x" * 256, "a/" * 40 + "a", "\ud800", 5],
)
def test_hostile_paths_are_refused(path: Any) -> None:
    assert path_problem(path)
    with pytest.raises(BadTask, match="path 2 of files"):
        files_of({"files": {"ok.txt": "", path: "x"}})


@pytest.mark.parametrize("path", ["a", "a/b.c", "-rf", "a b/'x\"$(y)", ".git/config", "é"])
def test_ordinary_and_odd_names_are_kept(path: str) -> None:
    files = files_of({"files": {path: {"base64": "AP8="}}})
    assert files == {path: b"\x00\xff"}
    with tarfile.open(fileobj=io.BytesIO(packed(files))) as archive:
        (entry,) = archive.getmembers()
    assert (entry.name, entry.mtime, entry.mode, entry.isfile()) == (path, 946_684_800, 0o644, True)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"files": ["a"]}, "files is no object"),
        ({"files": "a"}, "files is no object"),
        (
            {"files": {"a": "", "a/b": ""}},
            "path 2 of files needs a folder where another path is a file; rename one of them",
        ),
        ({"files": {"a": 5}}, "the content of path 1 of files is neither"),
        ({"files": {"a": {"base64": "?"}}}, "is not valid base64"),
        ({"files": {}}, "it has no field tests"),
        ({"tests": {"command": " "}}, "tests.command is no text"),
        ({"tests": {"command": "x", "timeout_s": 0}}, "tests.timeout_s is no number"),
        ({"tests": {"command": "x", "timeout_s": True}}, "tests.timeout_s is no number"),
        ({"tests": {"command": "x", "secret": 1}}, "tests has an unknown field"),
        ({"tests": {"command": "x", "expected": []}}, "tests.expected is no list"),
        ({"tests": {"command": "x", "files": {"/secret": ""}}}, "path 1 of tests.files is absolute"),
    ],
)
def test_unusable_payload_is_named_and_not_quoted(payload: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadTask, match=reason) as raised:
        check_payload(payload)
    assert "secret" not in str(raised.value)


def test_nulls_are_fields_that_a_row_of_parquet_does_not_have() -> None:
    payload = {"files": {"a": "x", "b": None}, "tests": {"command": "x", "files": None, "timeout_s": None}}
    assert files_of(payload) == {"a": b"x"}
    assert hidden_tests_of(payload) == HiddenTests({}, "x")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
def test_any_payload_is_read_or_refused(value: Any) -> None:
    for payload in ({"files": value}, {"tests": value}):
        try:
            assert isinstance(files_of(payload), dict)
            hidden_tests_of(payload)
        except BadTask:
            pass


def test_settings_are_those_of_the_shipped_type() -> None:
    settings = TOOLS.parse({"type": "workspace", "tools": ["shell"], "max_calls": 3})
    assert isinstance(settings, WorkspaceSettings) and settings.tools == ("shell",)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"backend": "container"}, "needs an image"),
        ({"sandbox": {"kind": "landlock"}}, "a workspace needs sandbox.kind = \"bubblewrap\", not 'landlock'"),
        ({"network": True}, 'belong to backend = "container"'),
        ({"tools": []}, "tools"),
        ({"tools": ["shell", "shell"]}, "tools names one twice"),
    ],
)
def test_settings_that_do_not_fit_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        WorkspaceSettings.model_validate(keys)


class Answering:
    """Workspace whose test run says what it is given; `{number}` is the number of the harness."""

    def __init__(self, output: str, code: int | None = 0) -> None:
        self._output, self._code = output, code

    async def run(self, command: str, *, time_limit_s: float, stdin: bytes = b"") -> CommandResult:
        with tarfile.open(fileobj=io.BytesIO(stdin)) as archive:
            file = archive.extractfile("number")
            assert file is not None
            number = file.read().decode()
        return CommandResult("exited", self._code, self._output.replace("{number}", number))

    async def fresh(self) -> Answering:
        return self

    async def close(self) -> None:
        pass


PYTEST = HiddenTests({}, "pytest")


@pytest.mark.parametrize(
    ("output", "parts"),
    [
        ('{number} 0\n{"number": "{number}", "tests": {"b": true, "a": true}}', {"test_1": 1.0, "test_2": 1.0}),
        ('{number} 1\n{"number": "{number}", "tests": {"b": true, "a": false}}', {"test_1": 1.0, "test_2": 0.0}),
        ('{number} 1\n{"number": "{number}", "tests": {"a": true}}', {"test_1": 1.0}),
        ('{number} 0\n{"number": "{number}", "tests": {}}', {}),
        ('{number} 0\n{"number": "other", "tests": {"a": true}}', {}),
        ('guessed 0\n{"number": "guessed", "tests": {"a": true}}', {}),
        ("{number} 0\n", {}),
        ("{number} 0\n[]", {}),
        ("{number} 0\n" + "[" * 100_000, {}),
        ("", {}),
    ],
)
async def test_only_a_whole_report_with_the_number_counts(output: str, parts: dict[str, float]) -> None:
    outcome = await run_tests(Answering(output), PYTEST, {})
    success = "{number} 0" in output and bool(parts) and all(parts.values())
    assert outcome == Outcome(float(success), success, parts)
