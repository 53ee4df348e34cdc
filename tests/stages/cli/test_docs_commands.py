"""The documented commands that need no GPU, engine or network are run as written, page by page."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.docs_desk import STAND_INS, Shell, prepared
from support.docs_pages import FILE, OBJECTS, ONCE, ROOT, RUN, blocks, pages, preparations, steps
from support.rollouts.scripted_environment import install_scripted_engine
from support.runs import treadle_forks
from support.servers.object_server import ObjectServer
from support.sweep import sampled
from support.tables.rl_tables import write_policy

RUNNABLE = [page for page in pages() if any(block.remark in (RUN, ONCE, OBJECTS) for block in blocks(page))]
SAMPLE = ("README.md", "own.md", "viewer.md")
"""The pages that CI runs."""
BUCKET = "my-bucket"
"""As the pages call it."""


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a folder of this session, the same for all its processes."""
    base = tmp_path_factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / "docs"


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Commands start quickly, and find no engine."""
    folder = tmp_path_factory.mktemp("shell")
    (folder / "bin").mkdir()
    server = treadle_forks.install(folder / "bin", folder / "socket")
    yield Shell(folder / "bin", {"TREADLE_CACHE": str(folder / "cache")})
    server.communicate()


@pytest.fixture(scope="session")
def shell_with_engine(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Return the same with the scripted engine of `rl`."""
    return Shell(shell.bin, install_scripted_engine(tmp_path_factory.mktemp("engine") / "cache"))


@pytest.mark.parametrize(
    "page", sampled(RUNNABLE, [page for page in RUNNABLE if page.name in SAMPLE]), ids=lambda page: page.name
)
def test_page_commands_run_as_written(
    page: Path, tmp_path: Path, store: Path, shell: Shell, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "page"
    shutil.copytree(prepared(preparations(page), store, shell), folder, symlinks=True)
    (folder / ".venv/bin").unlink()
    (folder / ".venv/bin").symlink_to(shell.bin)
    for step in steps(page):
        kind, _, name = step.remark.partition(" ")
        if kind == "stand-in":
            shutil.copy(STAND_INS / name, folder / Path(name).name)
            if not (folder / "start").exists():
                write_policy(folder / "start")
            shell = request.getfixturevalue("shell_with_engine")
        elif step.remark.startswith(FILE):
            (folder / name).write_text(step.text, encoding="utf-8")
        elif step.remark == RUN:
            shell.run_block(step, folder)
        elif step.remark == ONCE:
            assert step.text.strip() in preparations(page)
        elif step.remark == OBJECTS:
            with_objects = Shell(
                shell.bin, {**shell.variables, **with_bucket(request.getfixturevalue("objects"), tmp_path)}
            )
            with_objects.run_block(step, folder)


def with_bucket(objects: ObjectServer, folder: Path) -> dict[str, str]:
    """Make the bucket of the pages; returns the variables that lead there."""
    make = urllib.request.Request(f"{objects.environment['AWS_ENDPOINT_URL']}/{BUCKET}", method="PUT")
    urllib.request.urlopen(make, timeout=60).close()
    return {"AWS_ENDPOINT_URL": objects.environment["AWS_ENDPOINT_URL"], "TREADLE_WORK": str(folder / "work")}


def test_newcomer_pages_are_included() -> None:
    names = {page.name for page in RUNNABLE}
    assert {"README.md", "first-rows.md", "own.md", "resume.md"} <= names


def test_failing_command_is_reported_with_page_and_line(shell: Shell, tmp_path: Path) -> None:
    block = blocks(ROOT / "README.md")[0]
    broken = type(block)(block.page, 7, "", "treadle status --run nothing-of-this-name\ntrue\n", RUN)
    with pytest.raises(AssertionError, match=r"README.md, line 7.*(?s:.*)nothing-of-this-name"):
        shell.run_block(broken, tmp_path)


def test_page_whose_first_score_is_zero_is_reported(shell: Shell, tmp_path: Path) -> None:
    block = blocks(ROOT / "README.md")[0]
    told = type(block)(block.page, 7, "", "echo 'base   mine  3  0.000 [0.000, 0.561]  0.056 (.00–.17)'\n", RUN)
    with pytest.raises(AssertionError, match=r"README.md, line 7: a reader's first figure is 0.000"):
        shell.run_block(told, tmp_path)
