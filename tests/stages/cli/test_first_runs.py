"""What a new user sees: missing parts are reported in one line before a model is asked, and scores are put in
context.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.runs.command_line import Desk, tutor

CONFIG = """
[models.base]
model = "treadle-tutor"
endpoints = [{{ url = "{url}" }}]

[questions]
sources = [{{ path = "questions.jsonl", dataset = "mine", domain = "qa", choices_field = "options" }}]

[environment]
python.enabled = false
search.corpus = ["corpus.jsonl"]
"""
BOOK = {"id": "1", "title": "Vorna", "text": "The book Vorna was written by Ilme in 1848."}
KNOWN = {"question": "Who wrote the book Vorna?", "answer": "Ilme"}
CHOICE = {"question": "In which year was the book Vorna written?", "options": ["1848", "1812"], "answer": "A"}
UNKNOWN = {"question": "Which colour has the door of house 4?", "answer": "green"}


@pytest.fixture(scope="module")
def tutor_url() -> Iterator[str]:
    with tutor() as url:
        yield url


@pytest.fixture
def desk(tmp_path: Path, tutor_url: str) -> Desk:
    desk = Desk(tmp_path)
    desk.write("questions.jsonl", KNOWN)
    desk.write("corpus.jsonl", BOOK)
    (tmp_path / "run.toml").write_text(CONFIG.format(url=tutor_url))
    return desk


def run(desk: Desk, *more: str) -> Any:
    return desk.treadle("run", "run.toml", "--run", "r", *more, TREADLE_CACHE=str(desk.folder / "cache"))


def test_tutor_reports_how_many_questions_it_does_not_know(desk: Desk) -> None:
    desk.write("questions.jsonl", KNOWN, CHOICE, UNKNOWN)
    said = run(desk).succeeded().out
    assert "1 of 3 questions are not from the sample world, so its answers to them mean nothing" in said
    assert "  0.667 [" in said


def test_known_tutor_questions_need_no_notice(desk: Desk) -> None:
    desk.write("questions.jsonl", KNOWN, CHOICE)
    said = run(desk).succeeded().out
    assert "not from the sample world" not in said and "  1.000 [" in said


def test_benchmark_unknown_to_the_tutor_is_reported(desk: Desk, tutor_url: str) -> None:
    desk.write("test.jsonl", {"question": "Nine eggs a day, three eaten: how many are left?", "answer": "#### 6"})
    given = ("--endpoint", tutor_url, "--model", "treadle-tutor", "--benchmark", "gsm8k=test.jsonl")
    said = desk.treadle("eval", *given, "--run", "e", "--set", "environment.search.enabled=false").succeeded().out
    assert "1 of 1 questions are not from the sample world" in said


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        ("", "corpus.jsonl has no rows"),
        ('{"text": "x"}\n', "corpus.jsonl row 1: 'id' must be"),
        ('{"id": "1", "title": "x"}\n', "corpus.jsonl row 1: it has neither 'contents' nor 'text'"),
        ("id,text\n1,x\n", "corpus.jsonl row 1"),
    ],
    ids=["empty", "without ids", "without texts", "CSV"],
)
def test_unsupported_corpus_layout_is_reported_before_a_run_is_created(desk: Desk, corpus: str, said: str) -> None:
    (desk.folder / "corpus.jsonl").write_text(corpus)
    run(desk).failed(said, code=2)
    assert not (desk.folder / "outputs").exists()


def test_corpus_titles_are_optional(desk: Desk) -> None:
    desk.write("corpus.jsonl", {"id": 1, "text": BOOK["text"]})
    assert "  1.000 [" in run(desk).succeeded().out


def test_missing_tokenizer_is_named_with_its_key(desk: Desk) -> None:
    failed = run(desk, "--set", "models.base.tokenizer=models/Qwen")
    failed.failed(f"models.base.tokenizer: there is no {desk.folder}/models/Qwen/tokenizer.json", "remove", code=2)
    assert not (desk.folder / "outputs").exists()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"ask": "Who?", "answer": "x"}, "it has 'ask', 'answer'; set question_field of the source"),
        ({"question": "Who?", "target": "x"}, "it has 'question', 'target'; set answer_field of the source"),
    ],
)
def test_questions_with_other_column_names_report_the_key_that_maps_them(
    desk: Desk, row: dict[str, Any], said: str
) -> None:
    desk.write("questions.jsonl", row)
    run(desk).failed("questions.jsonl", said, code=1)


def test_missing_search_provider_is_reported_before_a_run_is_created(desk: Desk) -> None:
    provider = ("--set", 'environment.search.web.provider={type="searxng",url="http://127.0.0.1:9"}')
    run(desk, *provider).failed("searxng accepts no connection at http://127.0.0.1:9", "provider.url`", code=1)
    assert not (desk.folder / "outputs").exists()


def test_missing_relative_path_is_reported_with_its_base_folder(desk: Desk) -> None:
    elsewhere = desk.folder / "elsewhere"
    elsewhere.mkdir()
    failed = Desk(elsewhere).treadle("run", "../run.toml", "--run", "r")
    failed.failed(f"{elsewhere}/", "does not exist", "or run the command in the folder that ", code=2)
