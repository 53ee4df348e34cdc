"""A workspace in real sandboxes: what its tools answer, what it is kept from, and hidden tests that an agent fakes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.servers.own_clock import limit_from
from support.sweep import sampled

from treadle.agent.contract import Outcome, Task
from treadle.agent.sandbox import folder_usage, process
from treadle.agent.sandbox.folder_usage import usage_of_folder
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.source import EpisodeTools
from treadle.agent.tools.workspace.settings import WorkspaceSettings
from treadle.agent.tools.workspace.source import WorkspaceSource
from treadle.core.errors import ToolError
from treadle.core.work_clock import work_clock

CONTEXT = CallContext("q", (), 1)
WRONG = "def add(a, b):\n    return a - b\n"
TESTS = {
    "files": {
        "tests/test_calc.py": "from calc import add\n\nhidden_phrase = 1\n\n"
        "def test_add():\n    assert add(2, 3) == 5\n\n"
        "def test_more():\n    assert add(1, 1) == 2\n"
    },
    "command": "python -m pytest -q",
    "timeout_s": 60,
}
OF_PROGRAM = {
    "files": {
        "test_program.py": "import subprocess, sys\n\ndef test_program():\n"
        '    done = subprocess.run([sys.executable, "calc.py"], capture_output=True, text=True)\n'
        '    assert done.stdout == "5\\n"\n'
    },
    "command": "pytest -q",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspaces")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def source(base: Path) -> AsyncIterator[WorkspaceSource]:
    settings = WorkspaceSettings.model_validate(
        {"sandbox": {"packages": ["pytest"]}, "size_mb": 16, "time_limit_s": 20.0, "folder": base}
    )
    async with settings.source("workspace", ToolResources()) as source:
        yield source


def _task(files: dict[str, Any], tests: dict[str, Any] | None = None) -> Task:
    return Task("k", "Fix it.", payload={"files": files} | ({"tests": tests} if tests else {}))


async def _call(tools: EpisodeTools, name: str, **arguments: Any) -> ToolOutcome:
    return await tools.call(name, arguments, deadline=work_clock().time() + 100, context=CONTEXT)


async def _calls(source: WorkspaceSource, task: Task, *calls: tuple[str, dict[str, Any]]) -> list[tuple[str, str]]:
    tools = await source.episode(task, 7)
    try:
        outcomes = [await _call(tools, name, **arguments) for name, arguments in calls]
    finally:
        await tools.close()
    return [(outcome.status, outcome.text) for outcome in outcomes]


async def _shell(source: WorkspaceSource, *commands: str, files: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    return await _calls(source, _task(files or {}), *(("shell", {"command": command}) for command in commands))


async def _outcome(source: WorkspaceSource, task: Task, *commands: str) -> Outcome | None:
    tools = await source.episode(task, 7)
    try:
        for command in commands:
            await _call(tools, "shell", command=command)
        return await tools.outcome()
    finally:
        await tools.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_files_are_read_written_edited_and_listed(source: WorkspaceSource) -> None:
    answers = await _calls(
        source,
        _task({"calc.py": WRONG, "data/x.bin": {"base64": "AP8="}}),
        ("list_files", {}),
        ("read_file", {"path": "calc.py"}),
        ("read_file", {"path": "calc.py", "start_line": 2, "end_line": 2}),
        ("read_file", {"path": "data"}),
        ("read_file", {"path": "-n"}),
        ("edit_file", {"path": "calc.py", "old_text": "a - b", "new_text": "a + b"}),
        ("edit_file", {"path": "calc.py", "old_text": "a - b", "new_text": "a + b"}),
        ("edit_file", {"path": "calc.py", "old_text": "a", "new_text": "c"}),
        ("edit_file", {"path": "data/x.bin", "old_text": "a", "new_text": "c"}),
        ("write_file", {"path": "new/it's.txt", "content": "é\n"}),
        ("write_file", {"path": "../etc/x", "content": "x"}),
        ("shell", {"command": "cat calc.py new/*; exit 3"}),
    )
    assert answers == [
        ("ok", "calc.py\ndata/\ndata/x.bin"),
        ("ok", WRONG.rstrip("\n")),
        ("ok", "    return a - b"),
        ("error", "data is a folder"),
        ("error", "there is no -n"),
        ("ok", "replaced 1 occurrence in calc.py"),
        ("error", "old_text is not in calc.py; read the file and copy the text exactly"),
        ("error", "old_text occurs 3 times in calc.py; add lines around it, or set replace_all"),
        ("error", "data/x.bin is no UTF-8 text; edit it with the shell"),
        ("ok", "wrote 2 characters to new/it's.txt"),
        ("error", "/bin/bash: line 1: ../etc/x: Read-only file system"),
        ("error", "def add(a, b):\n    return a + b\né\n[exit code 3]"),
    ]


@pytest.mark.asyncio(loop_scope="module")
async def test_commands_keep_files_and_nothing_else(source: WorkspaceSource) -> None:
    first, second, third = await _shell(
        source,
        "cd /tmp && echo 1 > /tmp/x; export A=1; echo one > /workspace/a; sleep 1000 & echo started",
        'cat a; echo "$A$PWD"; ls /tmp',
        "head -c 3 | wc -c; cat <<E\nhere\nE\nyes | head -1; python -c 'print(1)'",
    )
    assert first == ("ok", "started\n[exit code 0]")
    assert second == ("ok", "one\n/workspace\n[exit code 0]")
    assert third == ("ok", "0\nhere\ny\n1\n[exit code 0]")


@pytest.mark.asyncio(loop_scope="module")
async def test_commands_see_no_file_process_or_network_of_the_host(
    source: WorkspaceSource, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "of-the-host")
    (tmp_path / "secret").write_text("of-the-host")
    ((status, text),) = await _shell(
        source,
        f"cat {tmp_path}/secret; env; ls /root /home /proc /usr/local /work; cat /etc/passwd; ln -s {tmp_path} out;"
        "cat out/secret; echo > /usr/bin/x; mkdir /x; ls -d /workspace/../*;"
        "python -c 'import socket; socket.create_connection((\"127.0.0.1\", 1))'",
    )
    assert "of-the-host" not in text and status == "error"
    assert text.count("No such file or directory") >= 7
    assert "PermissionError" in text and text.count("Read-only file system") == 2


@pytest.mark.asyncio(loop_scope="module")
async def test_same_calls_on_a_new_workspace_give_the_same_outcomes(source: WorkspaceSource) -> None:
    calls = [
        ("shell", {"command": 'id; pwd; hostname; echo $$; ls -l --time-style=+%Y a; python -c \'print({"a", "b"})\''}),
        # bash reports a killed job before or after the next command's own errors.
        ("shell", {"command": "sleep 100 & kill -9 $!; wait"}),
        ("shell", {"command": "nonsense; cat missing"}),
        ("list_files", {}),
    ]
    task = _task({"a": "1", "b/c": "2"})
    assert await _calls(source, task, *calls) == await _calls(source, task, *calls)


@pytest.mark.asyncio(loop_scope="module")
async def test_calls_of_a_turn_run_in_their_order(source: WorkspaceSource) -> None:
    tools = await source.episode(_task({}), 1)
    commands = ["sleep 0.3; echo 1 >> log", "echo 2 >> log", "cat log"]
    outcomes = await asyncio.gather(*(_call(tools, "shell", command=command) for command in commands))
    await tools.close()
    assert outcomes[2].text == "1\n2\n[exit code 0]"


@pytest.mark.asyncio(loop_scope="module")
async def test_full_workspace_is_the_agents_fault_and_can_be_emptied(source: WorkspaceSource) -> None:
    full, fixed = await _shell(
        source, "for i in 1 2 3 4 5 6; do head -c 8M /dev/urandom > $i; done; sleep 20", "rm [0-9]; ls"
    )
    assert full == ("error", "[killed: the workspace is larger than its limit; delete files]")
    assert fixed == ("ok", "[exit code 0]")


@pytest.mark.asyncio(loop_scope="module")
async def test_removed_files_that_are_open_count(source: WorkspaceSource) -> None:
    fill = 'for n in 3 4 5 6; do eval "exec $n>f"; rm f; yes | head -c 15000000 >&$n; done; exec sleep 100'
    (answer,) = await _shell(source, fill)
    assert answer == ("error", "[killed: the workspace is larger than its limit; delete files]")


def test_closed_folders_count_for_an_ordinary_user() -> None:
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as top:
        if is_root:
            os.chown(top, 65534, -1)
            os.seteuid(65534)
        try:
            outer, inner = Path(top, "a"), Path(top, "a/b")
            inner.mkdir(parents=True)
            (inner / "file").write_bytes(bytes(1 << 20))
            for mode in (0o000, 0o200, 0o400):
                inner.chmod(mode)
                outer.chmod(mode)
                used = usage_of_folder(Path(top))
                assert used.num_bytes >= 1 << 20 and used.num_files == 3
                assert outer.stat().st_mode & 0o777 == mode
                outer.chmod(0o700)
                assert inner.stat().st_mode & 0o777 == mode
                inner.chmod(0o700)
        finally:
            os.seteuid(os.getuid())


@pytest.mark.asyncio(loop_scope="module")
async def test_folders_nested_without_end_are_an_outcome_and_deleted(source: WorkspaceSource, base: Path) -> None:
    script = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')"
    ((status, text),) = await _shell(source, f'python -c "{script}"')
    assert (status, text.splitlines()[-1]) == (
        "error",
        "[killed: the workspace or /tmp holds too many files or folders]",
    )
    assert [path.name for path in base.glob("*/*/*")] == ["bin"]


@pytest.mark.asyncio(loop_scope="module")
async def test_full_disk_of_the_host_is_no_outcome(source: WorkspaceSource, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = await source.episode(_task({}), 1)
    monkeypatch.setattr(folder_usage, "RESERVE_BYTES", 1 << 60)
    with pytest.raises(ToolError, match="the disk with the workspaces .* is full") as raised:
        await _call(tools, "shell", command="echo 1")
    assert raised.value.retryable
    await tools.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_time_limit_and_output_are_outcomes(
    source: WorkspaceSource, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = await source.episode(_task({}), 1)
    soon = CallContext("q", (), 1, budget_s=0.2)
    with monkeypatch.context() as patch:
        limit_from(patch, process, lambda: any(base.rglob("said")))
        slow = await tools.call("shell", {"command": "echo a; touch said; sleep 60"}, deadline=0.0, context=soon)
    flood = await _call(tools, "shell", command="yes")
    long = await _call(tools, "shell", command="seq 5000")
    await tools.close()
    assert (slow.status, slow.text) == ("timeout", "a\n[killed: the time limit was reached]")
    assert flood.status == "error" and flood.text.endswith("[killed: it printed too much]")
    assert long.status == "ok" and len(long.text) <= 4000 and long.text.endswith("5000\n[exit code 0]")


@pytest.mark.asyncio(loop_scope="module")
async def test_unusable_payload_names_the_task_and_quotes_nothing(source: WorkspaceSource) -> None:
    with pytest.raises(ToolError, match="payload of task k cannot be used: path 1 of files is absolute") as raised:
        await source.episode(_task({"/etc/secret": "x"}), 1)
    assert "secret" not in str(raised.value)


@pytest.mark.asyncio(loop_scope="module")
async def test_files_that_do_not_fit_are_named(source: WorkspaceSource) -> None:
    with pytest.raises(ToolError, match="the files of task k do not fit into the workspace"):
        await source.episode(_task({"a": "x" * (20 << 20)}), 1)


@pytest.mark.asyncio(loop_scope="module")
async def test_hidden_tests_are_never_seen_and_decide(source: WorkspaceSource) -> None:
    tools = await source.episode(_task({"calc.py": WRONG}, TESTS), 3)
    assert (await _call(tools, "list_files")).text == "calc.py"
    assert (
        "hidden_phrase"
        not in (await _call(tools, "shell", command="grep -rs hidden_phrase /workspace/ /tmp/ /opt; ls -a")).text
    )
    await _call(tools, "edit_file", path="calc.py", old_text="a - b", new_text="a + b")
    assert await tools.outcome() == Outcome(1.0, True, {"test_1": 1.0, "test_2": 1.0})
    with pytest.raises(ToolError, match="the episode has ended"):
        await _call(tools, "list_files")
    await tools.close()


FORGE = """
import json, os
number = open("/tmp/treadle/site/number").read()
json.dump({"number": number, "tests": {"a": True}}, open("/tmp/treadle/site/report.json", "w"))
os._exit(0)
"""
"""Forges the report, if it runs before pytest has loaded the plugin."""
FAKES = {
    "nothing": "true",
    "conftest": "cat > conftest.py <<E\ndef pytest_pyfunc_call(pyfuncitem):\n    return True\nE",
    "exit_at_import": "echo 'import os; os._exit(0)' > calc.py",
    "exit_of_pytest": "echo 'import pytest; pytest.exit(\"\", returncode=0)' > calc.py",
    "exit_after_one": "cat > calc.py <<E\nimport pytest\ndef add(a, b):\n    if a == 1: pytest.exit('', returncode=0)\n"
    "    return a + b\nE",
    "skip": "printf 'import pytest\\ndef add(a, b):\\n    pytest.skip()\\n' > calc.py",
    "expected_failure": "printf 'import pytest\\ndef add(a, b):\\n    pytest.xfail()\\n' > calc.py",
    "own_pytest": f"mkdir pytest; cat > forge <<'E'\n{FORGE}\nE\n"
    "cp forge pytest/__main__.py; echo > pytest/__init__.py",
    "own_modules": f"cat > forge <<'E'\n{FORGE}\nE\n"
    "for n in json random sitecustomize colorama; do cp forge $n.py; done",
    "configuration": "printf '[pytest]\\npython_files = mine.py\\n' > pytest.ini; echo 'def test_a(): pass' > mine.py",
    "more_tests": "echo 'from calc import add; import calc; calc.add = lambda a, b: a + b' > aa_test.py",
    "own_tests": "mkdir tests; echo 'def test_add(): pass' > tests/test_calc.py; chmod -R a-w tests",
    "linked_tests": "mkdir mine; echo 'def test_add(): pass' > mine/test_calc.py; ln -s mine tests",
    "tests_are_a_file": "echo > tests",
    "own_report": 'printf \'import os, json, glob\\nfor p in ["/tmp/treadle/site/report.json"]:\\n'
    '    json.dump({"number": "", "exit": 0, "tests": {"a": True}}, open(p, "w"))\\nos._exit(0)\\n\' > calc.py',
    "dotfiles": f"mkdir bin; printf '#!/opt/python/bin/python\\n' > bin/python; cat >> bin/python <<'E'\n{FORGE}\nE\n"
    "chmod +x bin/python; cp bin/python python; echo 'PATH=/workspace/bin:$PATH' | tee .bashrc .profile .bash_profile",
    "background": "setsid nohup sh -c 'while :; do echo \"def test_a(): pass\" > tests/test_calc.py; done' &",
    "killed_harness": "printf 'import os, signal\\nos.kill(os.getppid(), 9)\\nos.kill(-1, 9)\\n' > calc.py",
}


@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.asyncio(loop_scope="module")
async def test_faked_success_is_none(source: WorkspaceSource, fake: str) -> None:
    outcome = await _outcome(source, _task({"calc.py": WRONG}, TESTS), FAKES[fake])
    assert outcome is not None and (outcome.reward, outcome.success) == (0.0, False)


FAKES_OF_PROGRAMS = {
    "wrong": "echo 'print(4)' > calc.py",
    "own_report": "cat > calc.py <<E\nimport glob, os\nfor path in glob.glob('/tmp/treadle/**', recursive=True):\n"
    "    if os.path.isfile(path):\n        text = open(path, errors='replace').read()\n"
    "        open(path, 'w').write(text)\n"
    'open("/tmp/treadle/site/report.json", "w").write(\'{"number": "", "tests": {"a": true}}\')\n'
    "print(os.environ)\nos.kill(os.getppid(), 9)\nE",
    "shadows": "echo 'import os; os._exit(0)' | tee subprocess.py selectors.py; echo 'print(4)' > calc.py",
    "more_tests": 'echo \'import subprocess; subprocess.run = lambda *_, **__: type("", (), {"stdout": "5\\n"})\' '
    "> test_0.py",
}


@pytest.mark.parametrize("fake", FAKES_OF_PROGRAMS)
@pytest.mark.asyncio(loop_scope="module")
async def test_faked_success_of_a_program_is_none(source: WorkspaceSource, fake: str) -> None:
    outcome = await _outcome(source, _task({}, OF_PROGRAM), FAKES_OF_PROGRAMS[fake])
    assert outcome is not None and (outcome.reward, outcome.success) == (0.0, False)


PASS_ALL = "import _pytest.python; _pytest.python.Function.runtest = lambda self: None"
"""Makes every test pass, if it runs in pytest's process."""
IN_PLACE_OF_IMPORTS = (
    *("__init__.py", "tests/__init__.py", "tests.py", "msvcrt.py", "nt.py", "org.py", "org/__init__.py"),
    *("test_program.py", "test_program/__init__.py", "tests/test_program/__init__.py", "helper.py"),
    *("tests/helper/__init__.py", "tests/helper.so", "tests/test_a.txt", "test_a.txt"),
)


@pytest.mark.parametrize("path", sampled(IN_PLACE_OF_IMPORTS, IN_PLACE_OF_IMPORTS[::4]))
@pytest.mark.asyncio(loop_scope="module")
async def test_tests_of_a_program_import_nothing_of_the_agent(source: WorkspaceSource, path: str) -> None:
    program = OF_PROGRAM["files"]["test_program.py"]
    files = {"tests/test_program.py": f"import pickle, helper\n{program}", "tests/helper.py": ""}
    folder, text = os.path.dirname(path), f">>> {PASS_ALL}" if path.endswith(".txt") else PASS_ALL
    commands = f"mkdir -p ./{folder}; echo '{text}' > {path}"
    task = _task({}, {"files": files, "command": "pytest -q"})
    assert await _outcome(source, task, commands, "echo 'print(4)' > calc.py") == Outcome(0.0, False, {"test_1": 0.0})
    assert await _outcome(source, task, commands, "echo 'print(5)' > calc.py") == Outcome(1.0, True, {"test_1": 1.0})


@pytest.mark.asyncio(loop_scope="module")
async def test_packages_of_the_agents_code_stay(source: WorkspaceSource) -> None:
    test = "from calc import add\n\ndef test_add():\n    assert add(2, 3) == 5\n"
    tests = {"files": {"calc/tests/test_add.py": test}, "command": "pytest -q"}
    package = "echo 'def add(a, b): return a + b' > calc/__init__.py"
    assert await _outcome(source, _task({"calc/__init__.py": ""}, tests), package) == Outcome(
        1.0, True, {"test_1": 1.0}
    )
    files = {"calc/__init__.py": "", "calc/code.py": ""}
    tests = {"files": {"calc/test_add.py": test}, "command": "pytest -q"}
    assert await _outcome(source, _task(files, tests), package) == Outcome(1.0, True, {"test_1": 1.0})


@pytest.mark.asyncio(loop_scope="module")
async def test_tested_program_finds_modules_next_to_it(source: WorkspaceSource) -> None:
    commands = "echo 'value = 5' > other.py; echo 'import other; print(other.value)' > calc.py"
    assert await _outcome(source, _task({}, OF_PROGRAM), commands) == Outcome(1.0, True, {"test_1": 1.0})


@pytest.mark.asyncio(loop_scope="module")
async def test_expected_tests_decide_alone_and_other_commands_by_their_exit_code(source: WorkspaceSource) -> None:
    half = "printf 'def add(a, b):\\n    return 5\\n' > calc.py"
    expected = TESTS | {"expected": ["tests/test_calc.py::test_add"]}
    assert await _outcome(source, _task({}, expected), half) == Outcome(1.0, True, {"test_1": 1.0})
    missing = TESTS | {"expected": ["tests/test_calc.py::test_add", "tests/test_calc.py::test_gone"]}
    assert await _outcome(source, _task({}, missing), half) == Outcome(0.0, False, {"test_1": 1.0, "test_2": 0.0})
    command = {"files": {"check.sh": "grep -q 5 calc.py"}, "command": "sh check.sh"}
    assert await _outcome(source, _task({}, command), half) == Outcome(1.0, True, {"command": 1.0})
    assert await _outcome(source, _task({}, command), "echo > calc.py") == Outcome(0.0, False, {"command": 0.0})


@pytest.mark.asyncio(loop_scope="module")
async def test_files_that_steer_tests_are_the_tasks_own(source: WorkspaceSource) -> None:
    files = {"calc.py": WRONG, "conftest.py": "import calc\ncalc.add = lambda a, b: a + b\n"}
    assert await _outcome(source, _task(files, TESTS), "rm conftest.py") == Outcome(
        1.0, True, {"test_1": 1.0, "test_2": 1.0}
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_slow_tests_fail(source: WorkspaceSource) -> None:
    slow = {"files": {}, "command": "sleep 60", "timeout_s": 0.5}
    assert await _outcome(source, _task({}, slow)) == Outcome(0.0, False)


def test_workspaces_of_a_killed_process_are_removed_by_the_next(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal\n"
        "from treadle.agent.contract import Task\n"
        "from treadle.agent.tools.settings import ToolResources\n"
        "from treadle.agent.tools.workspace.settings import WorkspaceSettings\n"
        "async def main():\n"
        "    settings = WorkspaceSettings(folder=os.environ['BASE'], sandbox={'packages': []})\n"
        "    async with settings.source('w', ToolResources()) as source:\n"
        "        await source.episode(Task('k', 'q', payload={'files': {'a': 'b'}}), 1)\n"
        "        if os.environ['END'] == 'killed': os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )

    def left(end: str) -> list[str]:
        environment = os.environ | {"BASE": str(tmp_path), "END": end}
        subprocess.run([sys.executable, "-c", program], env=environment, check=end != "killed", timeout=100)
        return sorted(path.name for path in tmp_path.glob("*/*/*/a"))

    assert left("killed") == ["a"]
    assert left("closed") == []
