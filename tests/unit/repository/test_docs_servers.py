"""The page on servers: each server answers the same questions, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/behaviour/servers.md").read_text(encoding="utf-8")
FOLDERS = {"B": "browser", "E": "e2e", "F": "flows", "S": "stages", "U": "unit"}
QUESTIONS = (
    "bound to what",
    "`Host` checked",
    "`Origin` checked",
    "who may write",
    "a web page in the user's browser",
    "a neighbour",
)


def test_every_server_has_the_same_documented_questions() -> None:
    tables = [section for section in PAGE.split("\n## ") if "\n|---|" in section]
    assert len(tables) == 7
    for table in tables:
        answers = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", table, re.MULTILINE))
        assert [question for question in answers if question in QUESTIONS] == list(QUESTIONS)


def test_named_tests_exist() -> None:
    named = re.findall(r"([BEFSU]) `([\w/]+\.py)::(test_\w+)`", PAGE)
    assert len(named) == PAGE.count("::test_")
    for folder, file, test in named:
        text = (ROOT / "tests" / FOLDERS[folder] / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:async )?def {test}\(", text, re.MULTILINE), f"{file}::{test}"
