"""Commands, options, links and files that the documentation names exist; its TOML can be read."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest
from support.docs_pages import (
    ELSEWHERE,
    FILE,
    OBJECTS,
    ONCE,
    PREFECT,
    REASONS,
    ROOT,
    RUN,
    Block,
    blocks,
    commands,
    is_of_commands,
    pages,
)

from treadle.cli.main import cli

_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"[\w.*-]+\.py|[\w.*-]+(/[\w.*-]+)+\.(py|jinja|toml|txt|md|yaml)")
"""Data files are left out: they are the reader's, or what a command writes."""
ELSEWHERE_FILES = {
    "docs/guides/et-agent.md": {
        "evaluation/src/prompt_manager.py",
        "evaluation/src/llm_evaluator_sds.py",
        "evaluation/src/metrics.py",
        "radar/run.py",
    },
    "docs/guides/operators.md": {"second_look.py"},
}
"""Files of the original program, and one that the reader writes."""
_LINK = re.compile(r"\]\((?!https?:|mailto:)(?P<path>[^)#\s]*)(?:#(?P<place>[^)\s]+))?\)")


def problem(words: list[str]) -> str:
    """Return what is wrong with a command; empty if nothing is."""
    command: click.Command = cli
    names: list[str] = []
    options = {"-h", "--help"}
    choices: set[str] = set()
    """What the option before takes, where that is one of few."""
    for word in words:
        if word.startswith("<") or command.context_settings.get("ignore_unknown_options"):
            return ""
        if choices and word.islower() and word not in choices:
            return f"treadle {' '.join(names)} does not take {word!r}, but one of {', '.join(sorted(choices))}"
        choices = set()
        if isinstance(command, click.Group) and not word.startswith("-"):
            chosen = command.get_command(click.Context(command), word)
            if chosen is None:
                return f"there is no command {' '.join([*names, word])!r}"
            names.append(word)
            command = chosen
        elif word.startswith("-") and re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word):
            options |= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            if command is cli:
                options.add("--version")
            if word.partition("=")[0] not in options:
                return f"treadle {' '.join(names)} has no option {word!r}"
            for parameter in command.params:
                if word in parameter.opts and isinstance(parameter.type, click.Choice):
                    choices = set(parameter.type.choices)
    return ""


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists_with_its_options(page: Path) -> None:
    wrong = {" ".join(words): said for words in commands(page) if (said := problem(words))}
    assert not wrong


def test_missing_command_is_reported() -> None:
    assert "no command 'rum'" in problem(["rum", "x.toml"])
    assert "no option '--rum'" in problem(["run", "x.toml", "--rum"])
    assert "treadle export report has no option '--gold'" in problem(["export", "report", "--run", "r", "--gold"])
    assert "'llamafactory', but one of alpaca, hf" in problem(["export", "sft_rows", "--format", "llamafactory"])
    assert not problem(["run", "x.toml", "--run", "r", "--set", "a=1"])


def test_commands_are_found() -> None:
    readme = [" ".join(words) for words in commands(ROOT / "README.md")]
    assert len(readme) > 10 and any(line.startswith("run ") for line in readme)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_toml_blocks_are_valid(page: Path) -> None:
    for block in blocks(page):
        if block.language == "toml":
            tomllib.loads(block.text)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    for link in _LINK.finditer(re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)):
        target = page.parent / link["path"] if link["path"] else page
        assert target.exists(), link[0]
        if link["place"] and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
            assert link["place"] in {_anchor(heading) for heading in headings}, link[0]


def missing_files(text: str, page: Path) -> set[str]:
    """Return the files that inline code of a page names and that are neither in the repository nor next to the page."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.S | re.M)
    words = {word.strip("(),;:") for code in _CODE.findall(prose) for word in code.split()}
    return {
        word
        for word in words
        if _FILE.fullmatch(word)
        and not any(next(folder.glob(word), None) for folder in (ROOT, page.parent, ROOT / "tests"))
        and ("/" in word or not fnmatch.filter(_names_of_modules(), word))
    }


@cache
def _names_of_modules() -> set[str]:
    """Return the names of all Python files of the repository, without their folders."""
    folders = [folder for folder in ROOT.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    return {path.name for folder in folders for path in folder.rglob("*.py")}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    missing = missing_files(page.read_text(encoding="utf-8"), page)
    assert missing == ELSEWHERE_FILES.get(str(page.relative_to(ROOT)), set())


def test_a_missing_file_is_reported() -> None:
    text = (
        "See `core/no_such_file.py`, `core/runs/stage.py`, `no_such_name.py`, `stage.py` "
        "and `unit/repository/test_docs_*.py`."
    )
    assert missing_files(text, ROOT / "docs/index.md") == {"core/no_such_file.py", "no_such_name.py"}


def test_concept_pages_fit_two_screens() -> None:
    found = {page.stem: page for page in pages() if page.parent.name == "concepts"}
    assert set(found) == {"question", "rollout", "trajectory", "pool", "operator", "stage-instance", "run", "iteration"}
    for page in found.values():
        text = page.read_text(encoding="utf-8")
        assert len(text.split()) <= 360 and len(text.splitlines()) <= 50, page.name


def test_hand_written_docs_stay_short() -> None:
    written = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference"]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in written) <= 60_000
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_each_page_is_listed_on_the_front_page_or_its_folder_index() -> None:
    front = ROOT / "docs" / "index.md"
    listed = linked(front)
    for folder_index in {page for page in listed if page.name == "index.md"}:
        listed |= {page for page in linked(folder_index) if page.parent == folder_index.parent}
    assert {page.resolve() for page in pages()} - listed == {front}


def linked(page: Path) -> set[Path]:
    """Return the files that a page links to."""
    return {(page.parent / link["path"]).resolve() for link in _LINK.finditer(page.read_text(encoding="utf-8"))}


def unmarked(block: Block) -> bool:
    """Return whether a block of commands has no remark that it is run, or why not."""
    if block.remark.startswith(ELSEWHERE):
        return not (ROOT / block.remark.removeprefix(ELSEWHERE)).is_file()
    return is_of_commands(block) and block.remark not in (RUN, ONCE, OBJECTS, PREFECT, *REASONS)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_block_is_run_or_explains_why_not(page: Path) -> None:
    assert not [f"{page.name}, line {block.line}: {block.remark!r}" for block in blocks(page) if unmarked(block)]
    remarks = {
        block.remark for block in blocks(page) if block.remark and not block.remark.startswith((FILE, ELSEWHERE))
    }
    assert remarks <= {RUN, ONCE, OBJECTS, PREFECT, *REASONS}
    indented = re.findall(r"^ +```\w*\n +(?:\S*/)?(?:treadle|prefect) ", page.read_text(encoding="utf-8"), re.M)
    assert not indented, "no test sees commands in a block that is indented"


def test_command_block_without_a_remark_is_reported() -> None:
    def block(text: str, remark: str) -> Block:
        return Block(ROOT / "README.md", 1, "", text, remark)

    assert unmarked(block("treadle gc\n", "")) and unmarked(block("cd x\n.venv/bin/prefect worker start\n", "ruin"))
    assert unmarked(block("treadle gc\n", "by tests/unit/no_such_test.py"))
    assert not unmarked(block("treadle gc\n", "run")) and not unmarked(block("treadle gc\n", "gpu"))
    assert not unmarked(block("ls treadle\n", "")) and not unmarked(block("make demo\n", ""))


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
