"""Parse the documentation's pages: fenced blocks with the remark before them, and `treadle` commands.

A remark of the form `<!-- test: ... -->` on the line before a fence tells the tests what to do with the block:

- `<!-- test: run -->`: the commands are run, in the order of the page, in a scratch folder of the page's own;
- `<!-- test: run once -->`: one command that is run before all others, like a remark `after`;
- `<!-- test: run with objects -->`: the same with an object store, at `AWS_ENDPOINT_URL`;
- `<!-- test: run with prefect -->`: the commands are run by the tests of flows, against their server;
- `<!-- test: file NAME -->`: the block is written into that folder under this name, in page order;
- `<!-- test: gpu -->` or another of `REASONS`: why no test runs the commands;
- `<!-- test: by FILE -->`: a test that runs the block in its own way.

On lines of their own:

- `<!-- test: after COMMANDS -->`: the page's folder starts with the output of these commands, after those of earlier
  remarks; pages that start in the same way share it;
- `<!-- test: stand-in NAME -->`: from here on the file NAME is that of `tests/support/docs_stand_ins`, which needs no
  engine; the engine of `rl` is the scripted one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"(?:^<!-- test: (?P<remark>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_ALONE = re.compile(r"^<!-- test: (?P<remark>(?P<kind>after|stand-in) (?P<rest>[^\n]*)) -->\n(?!```)", re.M)
_INLINE = re.compile(r"`+((?:\.venv/bin/)?treadle [^`]+?)`+")
REASONS = {
    "gpu": "needs a GPU, or a model that needs one",
    "engines": "needs an engine of gigabytes; tests/e2e have them",
    "model": "asks a model that is served elsewhere",
    "network": "talks to something beyond this machine",
    "cluster": "needs several machines",
    "serves": "serves until Ctrl-C, for a user who works next to it",
    "measurement": "made figures once, in minutes or hours",
}
RUN, ONCE, FILE, ELSEWHERE = "run", "run once", "file ", "by "
OBJECTS, PREFECT = "run with objects", "run with prefect"
_SHELL = ("", "sh", "bash", "console")
_ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "2>", "<"}


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    text: str
    remark: str


def pages() -> list[Path]:
    """Return the pages that are written by hand."""
    names = ["README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
    return [ROOT / name for name in sorted(names) if not name.startswith("docs/reference/")]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match["language"], match["text"], match["remark"] or "")
        for match in _FENCE.finditer(text)
    ]


def preparations(page: Path) -> tuple[str, ...]:
    """Return the commands that run before those of the page."""
    found = _ALONE.finditer(page.read_text(encoding="utf-8"))
    once = tuple(block.text.strip() for block in blocks(page) if block.remark == ONCE)
    return once + tuple(match["rest"] for match in found if match["kind"] == "after")


def steps(page: Path) -> list[Block]:
    """Return blocks and stand-ins in order; a stand-in is a block with a remark and no text."""
    text = page.read_text(encoding="utf-8")
    stand_ins = [
        Block(page, text.count("\n", 0, match.start()) + 1, "", "", match["remark"])
        for match in _ALONE.finditer(text)
        if match["kind"] == "stand-in"
    ]
    return sorted([*blocks(page), *stand_ins], key=lambda block: block.line)


def is_of_commands(block: Block) -> bool:
    """Return whether a block is shell code that calls Treadle or Prefect."""
    return block.language in _SHELL and re.search(r"\b(treadle|prefect) [a-z-]", block.text) is not None


def commands(page: Path) -> Iterator[list[str]]:
    """Every `treadle` command of a page, in blocks and in running text, as words."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language in _SHELL:
            for line in block.text.replace("\\\n", " ").splitlines():
                yield from _of_line(line)
    for found in _INLINE.findall(_FENCE.sub("", text)):
        yield from _of_line(" ".join(found.split()))


def _of_line(line: str) -> Iterator[list[str]]:
    """Yield the `treadle` commands of one line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # A sentence with an apostrophe; blocks that are run never get here.
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if word in _ENDS or (word and set(word) <= set(";&|")):
            while command and re.fullmatch(r"[A-Z_]+=.*|nohup|nice|exec|\$|srun", command[0]):
                del command[0]
            if command and command[0].rsplit("/", 1)[-1] == "treadle":
                yield command[1:]
            command = []
        else:
            command.append(word)
