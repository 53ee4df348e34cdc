"""Export rows in verl's parquet schema, and import other programs' rows as questions.

Documented in docs/behaviour/selection.md.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson

from treadle.core.answers.ground_truth import BadGroundTruth, GroundTruth, decode
from treadle.core.errors import ConfigError, DataError
from treadle.core.runs.stage import Rows
from treadle.core.store.exported import new_folder, write_facts
from treadle.core.untrusted.input_files import read_rows
from treadle.rl.verl.data import write_verl
from treadle.rl.verl.rows import DATA_SOURCES, VERL_COLUMNS, domain_of, gold_answers, texts_of

TRAIN_FILE = "data/train.parquet"
SOURCES_FILE = "questions.toml"
_CARD = """---
configs:
- config_name: default
  data_files: "data/*.parquet"
---

# Rows for reinforcement learning

Questions in verl's schema, in the order of training. `data_source` selects the reward, `prompt` is the question as the
agent is shown it, `ability` is its domain, `reward_model.ground_truth` are the accepted answers, and `extra_info` has
the question without instructions, its id and source, its options, and the figures that it was selected by.

Read it with `datasets.load_dataset(folder)`, `pandas.read_parquet(folder + "/data")` or
`polars.read_parquet(folder + "/data")`; verl reads `data/train.parquet`.
"""
_CODE = "code"
"""Domain of rows with tests of a program."""
_TEST_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_FIELDS = (("source", "dataset"), ("question", "question"), ("answer", "answer"), ("split", "split"))


def export_verl(rows: Rows, target: Path, *, origin: Mapping[str, str], replace: bool = False) -> int:
    """Write a table of `rl_rows` as `data/train.parquet` into a new folder with a card; `origin` is in `export.json`.

    Returns the number of rows. Raises ConfigError if `target` is not usable, ArtifactError and StorageError.
    """
    with new_folder(target, replace=replace) as folder:
        (folder / TRAIN_FILE).parent.mkdir()
        num_rows = write_verl(rows.batches(VERL_COLUMNS), folder / TRAIN_FILE)
        (folder / "README.md").write_text(_CARD, encoding="utf-8")
        facts = {"kind": rows.kind, "format": "verl", "digest": rows.digest, "num_rows": num_rows}
        write_facts(folder, {**facts, **origin})
    return num_rows


def import_verl(
    source: Path, target: Path, domains: Mapping[str, str], *, tests: Path | None = None, replace: bool = False
) -> dict[str, int]:
    """Write the rows of a verl-style file as questions, one file per domain, with a configuration that reads them.

    `domains`: foreign `data_source` -> domain. `tests`: folder with the hidden tests of programs, a file
    `<question_id>.json` for each. Rows with tests have the domain `code` and the scorer `stdin_tests`. Returns the
    number of questions per domain. Raises DataError naming an invalid row, ConfigError for a `data_source` in
    `domains` that is Treadle's own or that no row has, and StorageError.
    """
    if ours := sorted(domains.keys() & set(DATA_SOURCES.values())):
        raise ConfigError(
            f"--domain: {ours[0]!r} is a data_source of Treadle's own, whose domain is fixed; leave it out"
        )
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    with new_folder(target, replace=replace) as folder:
        with contextlib.ExitStack() as stack:
            files: dict[str, IO[bytes]] = {}
            for row in read_verl(source, domains, tests):
                if row.domain not in files:
                    files[row.domain] = stack.enter_context((folder / _file_of(row.domain)).open("wb"))
                files[row.domain].write(row.as_json())
                counts[row.domain] += 1
                seen.add(row.data_source)
        if unknown := sorted(domains.keys() - seen):
            raise ConfigError(f"--domain: no row has {unknown[0]!r} as its data_source; known: {_some(seen)}")
        (folder / SOURCES_FILE).write_text(_sources(target.absolute(), sorted(counts)), encoding="utf-8")
        facts = {"kind": "questions", "format": "verl", "source": source.name}
        write_facts(folder, {**facts, "num_questions": dict(sorted(counts.items()))})
    return dict(sorted(counts.items()))


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(map(repr, listed[:5])) + (f" and {len(listed) - 5:,} others" if len(listed) > 5 else "")


def _file_of(domain: str) -> str:
    return f"{domain}.jsonl"


def _sources(folder: Path, domains: Iterable[str]) -> str:
    """Return the part of a configuration that reads the files."""
    lines = ["# Give it after the configuration of a run:  treadle run config.toml questions.toml --run NAME"]
    for domain in domains:
        # A JSON string is a TOML string, except for DEL, which JSON does not escape.
        path = orjson.dumps(str(folder / _file_of(domain))).decode().replace("\x7f", "\\u007f")
        lines += ["", "[[questions.sources]]", f"path = {path}", f'domain = "{domain}"']
        lines += [f'{name}_field = "{field}"' for name, field in _FIELDS]
        lines += ['choices_field = "choices"'] if domain == "choice" else []
        lines += ['scorer = "stdin_tests"', 'payload = ["tests"]'] if domain == _CODE else []
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """A row of another program's file, as a question."""

    question: str
    answers: tuple[str, ...]
    choices: tuple[str, ...]
    dataset: str
    data_source: str
    domain: str
    """`choice` if the row has options; else the domain of its `data_source`."""
    split: str
    """`train` or `heldout`."""
    id: str
    number: int
    """1-based row of the file."""
    tests: Mapping[str, Any] | None = None
    """Tests of a program, which are hidden from the policy; None for an answer."""

    def as_json(self) -> bytes:
        """Return a line that the stage `questions` reads."""
        fields = {
            "question": self.question,
            "answer": list(self.answers),
            "dataset": self.dataset,
            "split": self.split,
            "id": self.id,
            "row": self.number,
        }
        more = {} if self.tests is None else {"tests": self.tests}
        return orjson.dumps({**fields, **({"choices": list(self.choices)} if self.choices else {}), **more}) + b"\n"


def read_verl(path: Path, domains: Mapping[str, str] | None = None, tests: Path | None = None) -> Iterator[ImportedRow]:
    """Yield the rows of a verl-style parquet (or JSON Lines) file as questions.

    The question is `extra_info.question`, else the last user message, including any instructions in it. The data set is
    `extra_info.source`, else `data_source`. Raises DataError for a row without a question, and for one without options
    whose data source is neither Treadle's own nor in `domains`.
    """
    for row in read_rows(path, columns=("data_source", "prompt", "extra_info", "reward_model")):
        where = f"{path}, row {row.number}"
        if row.value is None:
            raise DataError(f"{where}: {row.detail}")
        try:
            yield _imported_row(row.value, row.number, domains, tests)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None


def _imported_row(
    fields: Mapping[str, Any], number: int, domains: Mapping[str, str] | None, folder: Path | None
) -> ImportedRow:
    info, reward = _object(fields, "extra_info"), _object(fields, "reward_model")
    data_source = fields.get("data_source")
    if not isinstance(data_source, str):
        raise DataError("it has no data_source, so it is not a row of verl's schema")
    truth = _truth(reward.get("ground_truth"))
    is_code = truth.tests is not None
    choices = () if is_code else tuple(texts_of(info.get("choices"), "option"))
    named = "choice" if choices else _CODE if is_code else domain_of(data_source, domains)
    return ImportedRow(
        question=_question(fields, info),
        answers=() if is_code else tuple(gold_answers(truth.answers)),
        choices=choices,
        dataset=_text(info.get("source")) or data_source,
        data_source=data_source,
        # A scorer other than the domain's is not imported; the benchmark's configuration sets it as `scorer`.
        domain=named.removesuffix("_characters"),
        split="train" if _text(info.get("split")) in ("", "train") else "heldout",
        id=_text(info.get("id")) or _text(info.get("index")),
        number=number,
        tests=_tests(truth, folder) if is_code else None,
    )


def _truth(ground_truth: Any) -> GroundTruth:
    try:
        return decode(ground_truth)
    except BadGroundTruth as error:
        raise DataError(str(error)) from None


def _tests(truth: GroundTruth, folder: Path | None) -> Mapping[str, Any]:
    """Return the tests of a program: those in the folder, else the row's own if they are complete."""
    given, name = truth.tests or {}, truth.question_id
    if folder is not None and _TEST_FILE.fullmatch(name) and (file := folder / f"{name}.json").is_file():
        found = orjson.loads(file.read_bytes())
        if not isinstance(found, dict):
            raise DataError(f"{file} is no object with tests")
        return found
    if "functional" in given and not {"inputs", "stdin"} & given.keys():
        where = f"there is none in {folder}" if folder is not None else "give the folder of the tests with --tests"
        raise DataError(f"its tests are stored apart, as {name[:60]!r}.json; {where}")
    return given


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise DataError(f"its {name} is of type {type(value).__name__}, not an object")
    return value or {}


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _question(fields: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    if isinstance(text := info.get("question"), str) and text.strip():
        return text
    prompt = fields.get("prompt")
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    for message in reversed(prompt if isinstance(prompt, list) else []):
        content = message.get("content") if isinstance(message, Mapping) and message.get("role") == "user" else None
        if isinstance(content, str) and content.strip():
            return content
    raise DataError("it has neither extra_info.question nor a user message")
