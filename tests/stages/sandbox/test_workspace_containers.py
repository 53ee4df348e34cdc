"""Workspaces in containers: how the engine is called, and the same behaviour as in sandboxes where an engine works."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.sandbox import stub_engine
from support.servers.own_clock import limit_from

from treadle.agent.contract import Outcome, Task
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.tools.outcome import CallContext
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.workspace import container
from treadle.agent.tools.workspace.backend import UnusableWorkspace
from treadle.agent.tools.workspace.container import ContainerOptions, ContainerWorkspaces, find_engine
from treadle.agent.tools.workspace.files import HiddenTests
from treadle.agent.tools.workspace.settings import WorkspaceSettings
from treadle.agent.tools.workspace.source import WorkspaceTools
from treadle.core.errors import ToolError
from treadle.core.work_clock import work_clock

IMAGE = os.environ.get("TREADLE_TEST_IMAGE", "python:3.12-slim")
"""Image with Python and pytest for the tests with a real engine."""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in for Podman first on the path; return its folder."""
    folder = tmp_path / "engine"
    folder.mkdir()
    program = folder / "podman"
    program.write_text(f"#!{sys.executable}\n" + Path(stub_engine.__file__).read_text())
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def _workspaces(tmp_path: Path, *, image: str = "img", network: bool = False, size_mb: int = 5) -> ContainerWorkspaces:
    options = ContainerOptions(image, "auto", network, 1.0, size_mb, SandboxSettings())
    return ContainerWorkspaces(options, tmp_path)


def _calls(engine: Path) -> list[list[str]]:
    return [json.loads(line) for line in (engine / "calls.jsonl").read_text().splitlines()]


def _options(words: list[str]) -> dict[str, str]:
    return {word: value for word, value in zip(words, words[1:], strict=False) if word.startswith("--")}


async def test_container_has_limits_and_no_network_and_is_removed(engine: Path, tmp_path: Path) -> None:
    async with _workspaces(tmp_path, size_mb=5) as workspaces:
        assert workspaces.facts() == {"isolation": "podman", "image": "sha256:of-the-image"}
        workspace = await workspaces.open(1)
        await workspace.close()
    (run,) = [words for words in _calls(engine) if words[0] == "run"]
    options = _options(run)
    assert options["--network"] == "none" and options["--cap-drop"] == "ALL" and "--read-only" in run
    assert options["--memory"] == options["--memory-swap"] == f"{1024 + 5 + 64}m"
    assert options["--pids-limit"] == "24" and options["--cpus"] == "1.0" and options["--pull"] == "never"
    assert "/workspace:rw,exec,nosuid,nodev,mode=1777,size=5m" in run
    assert list((engine / "containers").iterdir()) == []


async def test_network_is_opened_by_its_key(engine: Path, tmp_path: Path) -> None:
    async with _workspaces(tmp_path, network=True) as workspaces:
        await workspaces.open(1)
    (run,) = [words for words in _calls(engine) if words[0] == "run"]
    assert _options(run)["--network"] == "bridge"


async def test_commands_end_with_all_their_processes(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    async with _workspaces(tmp_path) as workspaces:
        workspace = await workspaces.open(1)
        done = await workspace.run("cat; echo err >&2; exit 3", time_limit_s=60, stdin=b"in\n")
        with monkeypatch.context() as patch:
            limit_from(patch, container, said.exists)
            slow = await workspace.run(f"echo a; touch {said}; sleep 1000", time_limit_s=0.2)
        flood = await workspace.run("yes", time_limit_s=60)
    assert (done.ending, done.exit_code, done.output) == ("exited", 3, "in\nerr\n")
    assert (slow.ending, slow.exit_code, slow.output) == ("timeout", None, "a\n")
    assert flood.ending == "output"
    assert sum(words[-1] == "kill -9 -1" for words in _calls(engine)) == 3


async def test_workspace_that_cannot_be_copied_is_the_agents_fault(engine: Path, tmp_path: Path) -> None:
    with (engine / "holes").open("wb") as file:
        file.truncate(1 << 40)
    async with _workspaces(tmp_path) as workspaces:
        workspace = await workspaces.open(1)
        with pytest.raises(UnusableWorkspace):
            await workspace.fresh()
        tests = HiddenTests({}, "true")
        tools = WorkspaceTools(workspace, (), {}, tests, time_limit_s=1, max_chars=1000)
        assert await tools.outcome() == Outcome(0.0, False)


async def test_containers_of_a_dead_process_are_removed_and_others_kept(engine: Path, tmp_path: Path) -> None:
    base = tmp_path / f"treadle-workspaces-{os.geteuid()}"
    (engine / "containers").mkdir()
    owners = {"dead": base / "dead.lock", "foreign": Path("/elsewhere/x.lock")}
    for name, owner in owners.items():
        labels = f"treadle.workspace.owner={owner}\ntreadle.workspace.host={platform.node()}"
        (engine / "containers" / name).write_text(labels)
    async with _workspaces(tmp_path) as living:
        workspace = await living.open(1)
        async with _workspaces(tmp_path):
            assert sorted(path.name for path in (engine / "containers").iterdir()) == ["c1", "foreign"]
        await workspace.close()
    assert [path.name for path in (engine / "containers").iterdir()] == ["foreign"]


async def test_missing_image_is_named_and_never_pulled(engine: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="there is no image 'missing' on this machine: run `podman pull missing`"):
        async with _workspaces(tmp_path, image="missing"):
            pass


def test_engine_that_does_not_work_is_named(engine: Path) -> None:
    (engine / "down").touch()
    with pytest.raises(ToolError, match="need Podman or Docker: `podman info` fails"):
        find_engine("podman")


def works() -> bool:
    """Return whether an engine and the image are there."""
    program = next(filter(None, map(shutil.which, ("podman", "docker"))), None)
    words = [str(program), "image", "inspect", IMAGE]
    return program is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def real(tmp_path: Path) -> WorkspaceSettings:
    keys = {"backend": "container", "image": IMAGE, "size_mb": 16, "folder": tmp_path}
    return WorkspaceSettings.model_validate(keys)


@pytest.mark.may_skip
@pytest.mark.skipif(not works(), reason=f"needs Podman or Docker with the image {IMAGE}")
async def test_real_container_behaves_like_a_sandbox(real: WorkspaceSettings) -> None:
    context = CallContext("q", (), 1)
    payload = {
        "files": {"calc.py": "def add(a, b):\n    return a - b\n"},
        "tests": {
            "files": {"check.sh": "python -c 'import calc; assert calc.add(1, 2) == 3'"},
            "command": "sh check.sh",
        },
    }
    async with real.source("workspace", ToolResources()) as source:
        tools = await source.episode(Task("k", "q", payload=payload), 1)

        async def call(name: str, **arguments: Any) -> tuple[str, str]:
            done = await tools.call(name, arguments, deadline=work_clock().time() + 100, context=context)
            return done.status, done.text

        assert await call("list_files") == ("ok", "calc.py")
        assert (await call("shell", command="sleep 1000 & head -c 64M /dev/zero > big; rm big; ls"))[1].endswith(
            "calc.py\n[exit code 0]"
        )
        assert (await call("shell", command="touch /usr/x"))[0] == "error"
        assert (await call("shell", command="ps -ef | grep -c '[s]leep 1000'"))[1].startswith("0")
        assert await call("edit_file", path="calc.py", old_text="a - b", new_text="a + b") == (
            "ok",
            "replaced 1 occurrence in calc.py",
        )
        assert await tools.outcome() == Outcome(1.0, True, {"command": 1.0})
        await tools.close()
