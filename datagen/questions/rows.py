"""Parse a row of a source into a question, or reject it with a reason.

Nothing is guessed: a row that lacks a field, or has something other than text in it, goes to quarantine with a reason
code and a sentence.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.agent.prompts import Format
from treadle.agent.tools.search_config import SearchRoute
from treadle.agent.tools.workspace.files import BadTask
from treadle.core.config import canonical_json
from treadle.core.untrusted.input_files import InputRow
from treadle.datagen.questions.benchmarks import FORMATS, SCORED_DOMAINS, TASK, Benchmark, Domain
from treadle.datagen.questions.layouts import RowRejected, check_is_text
from treadle.datagen.questions.payload import EMPTY, canonical, masked, payload_of
from treadle.datagen.questions.row_reader import NO_GOLD, Gold, Options, RowReader, answers_of
from treadle.datagen.questions.sources import (
    DOMAIN_FIELD,
    PAYLOAD_FIELD,
    TASK_FIELDS,
    QuestionsSettings,
    SourceSettings,
    Split,
)

_log = logging.getLogger(__name__)

_SPLIT_COLUMN = "split"
_SPLITS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    **dict.fromkeys(
        ("heldout", "held_out", "held-out", "test", "dev", "val", "valid", "validation", "eval"), "heldout"
    ),
}
_DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/+-]{0,127}")
_NO_LETTERS = re.compile(r"[^a-z]+")
_MAX_DEPTH = 500
"""Levels of lists and objects that a row may have."""
_KNOWN_FORMATS = ", ".join(FORMATS)
_QUESTION = "question"
"""Default type of environment; question keys do not include it."""
_DOMAIN = TypeAdapter(Domain)
_WITHOUT_ANSWER = frozenset({"missing_field", "null_field", "empty_answer", "no_gold_answer"})
"""Reasons why a row has no gold answer, which a task may lack."""


@dataclass(frozen=True, slots=True)
class ParsedQuestion:
    """A validated question; texts are stripped, answers are non-empty and unique. Only tasks may have no answers."""

    dataset: str
    domain: Domain
    question: str
    answers: tuple[str, ...]
    choices: tuple[str, ...]
    split: Split | None
    source_row: int
    meta: str
    format: Format | None = None
    scorer: str | None = None
    search: SearchRoute | None = None
    payload: str = EMPTY
    """Hidden JSON object with sorted keys."""
    kind: str = _QUESTION
    """Type of the environment that it is asked in."""
    environment: str = DEFAULT_ENVIRONMENT
    """Name of that environment."""

    @property
    def key(self) -> str:
        """Key of 16 hex digits over everything that is asked; texts that are equal under NFC give the same key."""
        return content_key(
            self.question,
            self.answers,
            self.choices,
            kind=self.kind,
            payload=self.payload,
            environment=self.environment,
        )


def content_key(
    question: str,
    answers: Sequence[str],
    choices: Sequence[str],
    *,
    kind: str = _QUESTION,
    payload: str = EMPTY,
    environment: str = DEFAULT_ENVIRONMENT,
) -> str:
    """Return the first 16 hex digits of SHA-256 over the canonical JSON of `[question, answers, choices]`.

    The texts are normalised to NFC and stripped. `kind` and `payload` follow in the list, unless both have their
    defaults, then `environment`, unless it is the default.
    """
    parts: list[Any] = [_nfc(question), [_nfc(answer) for answer in answers], [_nfc(choice) for choice in choices]]
    if (kind, payload) != (_QUESTION, EMPTY):
        parts += [kind, payload]
    if environment != DEFAULT_ENVIRONMENT:
        parts.append(["environment", environment])
    return hashlib.sha256(canonical_json(parts)).hexdigest()[:16]


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def parse_row(row: InputRow, source: SourceSettings, settings: QuestionsSettings) -> ParsedQuestion:
    """Return the question in a row of a source; raise RowRejected if there is none. No reason quotes the payload."""
    if row.value is None:
        raise RowRejected(row.reason, masked(row, source.hidden).detail)
    if _nests_deeply(row.value):
        raise RowRejected("bad_json", "the row is nested too deeply")
    try:
        return _parse_fields(row.value, row.number, source, settings)
    except RecursionError:
        raise RowRejected("bad_json", "the row is nested too deeply") from None


def _nests_deeply(value: Any) -> bool:
    """Return whether lists and objects are in each other more than `_MAX_DEPTH` times.

    Python's own limit would decide otherwise, and it differs by version.
    """
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            part
            for one in level
            for part in (one.values() if isinstance(one, Mapping) else one)
            if isinstance(part, Mapping | list | tuple)
        ]
        if not level:
            return False
    return True


def _parse_fields(
    row: Mapping[str, Any], number: int, source: SourceSettings, settings: QuestionsSettings
) -> ParsedQuestion:
    fields = {name: value for name, value in row.items() if name not in source.hidden} if source.hidden else row
    dataset = _dataset(fields, source)
    rule = settings.benchmark_of(dataset)
    reader = RowReader(fields, source, rule, settings.is_own(rule))
    question = reader.question()
    needs_answers = settings.needs_answers_of(source)
    gold = _gold(reader, needs_answers)
    options = reader.options(gold, question)
    check_is_text(fields, (question, *options.texts))
    domain = _domain(fields, dataset, source, settings, bool(options.texts))
    answers = _answers(fields, gold, options, needs_answers)
    if not answers:
        domain = _domain(fields, dataset, source, settings, has_choices=False)
    _check_lengths(question, answers, options.texts, settings)
    for text in (question, *answers, *options.texts):
        check_text(text)
    used = reader.used.union((DOMAIN_FIELD, *TASK_FIELDS.values())) if source.is_environment else reader.used
    meta = {name: value for name, value in fields.items() if name not in used}
    return ParsedQuestion(
        dataset,
        domain,
        question,
        answers,
        options.texts,
        _split(fields, source),
        number,
        _json(meta),
        _format(fields, rule, bool(options.texts)),
        source.scorer or (None if options.texts else rule.scorer),
        settings.search_of(dataset, source),
        _payload(row, source, settings),
        settings.environment_of(source).kind,
        source.environment,
    )


def _gold(reader: RowReader, needs_answers: bool) -> Gold:
    """Return the field with the answers; `NO_GOLD` for a task that has none and needs none."""
    try:
        return reader.gold()
    except RowRejected as rejection:
        if needs_answers or rejection.reason not in _WITHOUT_ANSWER:
            raise
        return NO_GOLD


def _answers(fields: Mapping[str, Any], gold: Gold, options: Options, needs_answers: bool) -> tuple[str, ...]:
    """Return the accepted answers; empty for a task that has none and needs none."""
    if gold is NO_GOLD:
        return ()
    try:
        return answers_of(fields, gold, options)
    except RowRejected as rejection:
        if needs_answers or rejection.reason not in _WITHOUT_ANSWER:
            raise
        return ()


def _payload(row: Mapping[str, Any], source: SourceSettings, settings: QuestionsSettings) -> str:
    if source.is_environment:
        given = row.get(PAYLOAD_FIELD)
        payload = canonical({} if given is None else given, settings.max_payload_chars)
    else:
        payload = payload_of(row, source.payload, settings.max_payload_chars) if source.payload else EMPTY
    if source.scorer is not None:
        try:
            settings.scorer_of(source.scorer).check_payload(orjson.loads(payload))
        except BadTask as error:
            raise RowRejected("bad_payload", f"the payload cannot be used: {error}") from None
    return payload


def _dataset(fields: Mapping[str, Any], source: SourceSettings) -> str:
    name = fields.get(source.source_field) if source.source_field else None
    if name is None:
        if source.source_field and not source.dataset:
            raise RowRejected("missing_field", f"the row has no field {source.source_field!r} that names its data set")
        return source.dataset_name
    if not isinstance(name, str) or not _DATASET_NAME.fullmatch(name.strip()):
        raise RowRejected("bad_source", f"{str(name)[:60]!r} cannot be the name of a data set")
    return name.strip()


def _domain(
    fields: Mapping[str, Any], dataset: str, source: SourceSettings, settings: QuestionsSettings, has_choices: bool
) -> Domain:
    if has_choices:
        return "choice"
    named = fields.get(DOMAIN_FIELD) if source.is_environment else None
    try:
        domain = settings.domain_of(dataset, source) if named is None else _DOMAIN.validate_python(named)
    except ValidationError:
        raise RowRejected(
            "unknown_source", f"{str(named)[:40]!r} is not a domain: up to 40 of a-z, 0-9, - and _, a letter first"
        ) from None
    if domain is None and not settings.needs_answers_of(source):
        return TASK
    if domain is None:
        raise RowRejected("unknown_source", f"data set {dataset!r} has no domain; add it to questions.domains")
    if domain not in SCORED_DOMAINS and settings.needs_answers_of(source):
        if domain == TASK:
            raise RowRejected("unknown_source", "the domain task needs an environment that scores without gold answers")
        if source.scorer is None and settings.benchmark_of(dataset).scorer is None:
            raise RowRejected("unknown_source", f"the domain {domain!r} needs a scorer; set `scorer` of the source")
    return domain


def _format(fields: Mapping[str, Any], rule: Benchmark, has_choices: bool) -> Format | None:
    """Return the format in the row, else the benchmark's, else multiple choice if the question has options.

    Raises RowRejected for an unknown format.
    """
    for name in rule.format_field:
        value = fields.get(name)
        if value is None:
            continue
        words = _NO_LETTERS.sub("_", value.strip().lower()) if isinstance(value, str) else ""
        if words not in FORMATS:
            raise RowRejected(
                "bad_format", f"{str(value)[:40]!r} in field {name!r} is not a format; known: {_KNOWN_FORMATS}"
            )
        return FORMATS[words]
    return rule.format or ("multiple_choice" if has_choices else None)


def benchmark_questions(row: InputRow, source: SourceSettings, settings: QuestionsSettings) -> tuple[str, ...]:
    """Return the question of a benchmark row, and the question preceded by the passage that it refers to, if any.

    Raises RowRejected if the row has no usable question.
    """
    if row.value is None:
        raise RowRejected(row.reason, row.detail)
    rule = settings.benchmark_of(source.dataset_name)
    reader = RowReader(row.value, source, rule, settings.is_own(rule))
    return tuple(dict.fromkeys((reader.question(with_passage=False), reader.question())))


def _check_lengths(question: str, answers: Sequence[str], choices: Sequence[str], settings: QuestionsSettings) -> None:
    length = len(question) + sum(map(len, choices))
    if length > settings.max_question_chars:
        limit = settings.max_question_chars
        raise RowRejected("too_long", f"the question has {length:,} characters; the limit is {limit:,}")
    longest = max(map(len, answers), default=0)
    if longest > settings.max_answer_chars:
        limit = settings.max_answer_chars
        raise RowRejected("too_long", f"a gold answer has {longest:,} characters; the limit is {limit:,}")


def check_text(text: str) -> None:
    """Raise RowRejected for characters that tokenizers or files cannot represent."""
    if "\0" in text:
        raise RowRejected("nul_character", f"NUL at character {text.index(chr(0)) + 1} of {text[:40]!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise RowRejected("lone_surrogate", f"lone surrogate U+{code:04X} at character {error.start + 1}") from None


def with_split_warning(rows: Iterable[InputRow], source: SourceSettings) -> Iterator[InputRow]:
    """Yield the rows of a source; warn once if an ignored split column would have kept a row out of training."""
    is_settled = source.split is not None or source.split_field is not None
    for row in rows:
        if not is_settled and row.value is not None and (found := _ignored_split(row.value, source.hidden)):
            is_settled = True
            _log.warning(
                "questions of %s: the column %r is ignored, so all are training questions (row %d: %r); set "
                'split_field = %r, or split = "train" if that is intended',
                source.label,
                found[0],
                row.number,
                found[1][:40],
                found[0],
            )
        yield row


def _ignored_split(fields: Mapping[str, Any], hidden: Sequence[str]) -> tuple[str, str] | None:
    """Return the name and value of a column that looks like a split, unless the value means training."""
    for name, value in fields.items():
        if (
            name not in hidden
            and isinstance(name, str)
            and name.strip().lower() == _SPLIT_COLUMN
            and isinstance(value, str)
            and value.strip()
        ):
            return None if _SPLITS.get(value.strip().lower()) == "train" else (name[:40], value)
    return None


def _split(fields: Mapping[str, Any], source: SourceSettings) -> Split | None:
    if source.split is not None:
        return source.split
    value = fields.get(source.split_field) if source.split_field else None
    if value is None:
        return None
    split = _SPLITS.get(value.strip().lower()) if isinstance(value, str) else None
    if split is None:
        raise RowRejected("bad_split", f"{str(value)[:40]!r} is not a split; known: {', '.join(_SPLITS)}")
    return split


def _json(meta: Mapping[str, Any]) -> str:
    """Return `meta`, the other fields of the row, as strict JSON."""
    return json.dumps(_plain(meta), ensure_ascii=False, sort_keys=True, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_plain(str(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))
