"""Read the questions of a file as the stage `questions` parses them, and write them as a data set of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from treadle.core.errors import DataError
from treadle.core.store.exported import new_folder, write_facts
from treadle.core.untrusted.input_files import InputRow
from treadle.datagen.questions.layouts import RowRejected
from treadle.datagen.questions.rows import ParsedQuestion, parse_row
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings
from treadle.formats.et_agent.import_result import ImportResult, no_usable_rows
from treadle.formats.et_agent.records import ImportKind, ImportRecord, RejectedRow, read_records
from treadle.tasks.config import TreadleConfig

QUESTIONS_FILE = "questions.jsonl"


SOURCES_FILE = "questions.toml"


_SOURCE = SourceSettings(
    path=Path(QUESTIONS_FILE), dataset="imported", source_field="source", question_field="question",
    answer_field="answer", answer_form="plain",
)  # fmt: skip


def write_questions(
    path: Path, kind: ImportKind, config: TreadleConfig, domains: Mapping[str, str], target: Path, *, replace_it: bool
) -> int:
    """Write the questions of a file, and a configuration that reads them, into a new folder; return their number.

    `domains`: data set -> domain, for data sets without a known one. Raises DataError if no row has a question and
    trajectories, ConfigError if `target` cannot be used (see `new_folder`), StorageError.
    """
    settings = config.questions.model_copy(update={"domains": {**config.questions.domains, **domains}})
    found, seen = ImportResult(), set[str]()
    with new_folder(target, replace=replace_it) as folder:
        with (folder / QUESTIONS_FILE).open("wb") as file:
            for record in read_records(path, kind):
                try:
                    question = question_of(record, settings)
                except RowRejected as error:
                    found.reject(record.number, error)
                    continue
                if question.key not in seen:
                    seen.add(question.key)
                    line = {"question": question.question, "answer": question.answers, "source": question.dataset}
                    file.write(orjson.dumps({**line, "row": record.number}) + b"\n")
        if not seen:
            raise DataError(no_usable_rows(path, found))
        (folder / SOURCES_FILE).write_text(_sources_toml(target.absolute(), domains), encoding="utf-8")
        write_facts(folder, {"kind": "questions", "format": kind, "source": path.name, "num_questions": len(seen)})
    return len(seen)


def question_of(record: ImportRecord | RejectedRow, settings: QuestionsSettings) -> ParsedQuestion:
    """Return the question of a row as the stage `questions` parses it; raise RowRejected."""
    if isinstance(record, RejectedRow):
        raise RowRejected(record.reason, record.detail)
    try:
        return parse_row(InputRow(record.number, record.fields), _SOURCE, settings)
    except RowRejected as error:
        more = "; or give --domain NAME=DOMAIN" if error.reason == "unknown_source" else ""
        raise RowRejected(error.reason, f"{error}{more}") from None


def _sources_toml(folder: Path, domains: Mapping[str, str]) -> str:
    """Return a configuration file that reads the questions."""
    lines = [
        "# Pass this file after the configuration of a run:  treadle run config.toml questions.toml --run NAME",
        "",
    ]
    if domains:
        lines += ["[questions.domains]", *(f"{_toml(name)} = {_toml(domain)}" for name, domain in domains.items()), ""]
    keys = {"path": str(folder / QUESTIONS_FILE), "dataset": _SOURCE.dataset, "source_field": "source"}
    keys |= {"question_field": "question", "answer_field": "answer", "answer_form": "plain"}
    lines += ["[[questions.sources]]", *(f"{name} = {_toml(value)}" for name, value in keys.items())]
    return "\n".join(lines) + "\n"


def _toml(text: str) -> str:
    # JSON strings are valid TOML strings, except that JSON does not escape DEL.
    return orjson.dumps(text).decode().replace("\x7f", "\\u007f")
