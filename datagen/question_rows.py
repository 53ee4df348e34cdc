"""One row of a source becomes a question, or a rejection that says why not.

Nothing is guessed: a row that lacks a field, holds something else than text in it, or cannot be told apart from
noise goes to quarantine with a reason code and a sentence.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.agent.prompts import Format
from treadle.agent.tools.search_config import SearchRoute
from treadle.core.answers.extraction import last_box
from treadle.core.config import canonical_json
from treadle.core.inputs import InputRow
from treadle.datagen.benchmarks import FORMATS, AnswerForm, Benchmark, Domain
from treadle.datagen.question_sources import QuestionsSettings, SourceSettings, Split

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
_GSM8K_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
_LETTER = re.compile(r"\(?([A-Z])[).]?")
_NO_LETTERS = re.compile(r"[^a-z]+")
_KNOWN_FORMATS = ", ".join(FORMATS)
_MAX_CHOICES = len(string.ascii_uppercase)
_MAX_ANSWERS = 1_000


class Rejected(Exception):
    """A row that does not become a question: `reason` is a code, the message one sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Question:
    """A validated question; texts are stripped, answers non-empty and different from each other."""

    dataset: str
    domain: Domain
    question: str
    answers: tuple[str, ...]
    choices: tuple[str, ...]
    split: Split | None
    source_row: int
    meta: str
    format: Format | None = None
    scorer: Domain | None = None
    search: SearchRoute | None = None

    @property
    def key(self) -> str:
        """16 hex digits over question, answers and choices; equal texts in any Unicode form give the same key."""
        return content_key(self.question, self.answers, self.choices)


def content_key(question: str, answers: Sequence[str], choices: Sequence[str]) -> str:
    """First 16 hex digits of SHA-256 over the canonical JSON of `[question, answers, choices]`, NFC and stripped."""
    parts = [_nfc(question), [_nfc(answer) for answer in answers], [_nfc(choice) for choice in choices]]
    return hashlib.sha256(canonical_json(parts)).hexdigest()[:16]


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def parse_row(row: InputRow, source: SourceSettings, settings: QuestionsSettings) -> Question:
    """Validate one row of a source; raises Rejected."""
    if row.value is None:
        raise Rejected(row.reason, row.detail)
    fields = row.value
    dataset = _dataset(fields, source)
    rule = settings.benchmark_of(dataset)
    used: set[str] = {name for name in (source.source_field, source.split_field) if name}
    question = _question(fields, source, rule, used)
    choices = _choices(fields, source, rule, used)
    domain = _domain(dataset, source, settings, bool(choices))
    answer = _field(fields, (source.answer_field,) if source.answer_field else rule.answer, "answer", used)
    form = source.answer_form or (rule.answer_form if source.answer_field is None else "plain")
    answers = _answers(answer, form, choices)
    if choices:
        answers = _letters(answers, choices)
    _check_lengths(question, answers, choices, settings)
    for text in (question, *answers, *choices):
        check_text(text)
    meta = {name: value for name, value in fields.items() if name not in used}
    return Question(
        dataset,
        domain,
        question,
        answers,
        choices,
        _split(fields, source),
        row.number,
        _json(meta),
        _format(fields, rule, bool(choices)),
        None if choices else rule.scorer,
        settings.search_of(dataset, source),
    )


def _dataset(fields: Mapping[str, Any], source: SourceSettings) -> str:
    name = fields.get(source.source_field) if source.source_field else None
    if name is None:
        if source.source_field and not source.dataset:
            raise Rejected("missing_field", f"the row has no field {source.source_field!r} with its data set")
        return source.dataset_name
    if not isinstance(name, str) or not _DATASET_NAME.fullmatch(name.strip()):
        raise Rejected("bad_source", f"{str(name)[:60]!r} cannot be the name of a data set")
    return name.strip()


def _domain(dataset: str, source: SourceSettings, settings: QuestionsSettings, has_choices: bool) -> Domain:
    if has_choices:
        return "choice"
    domain = settings.domain_of(dataset, source)
    if domain is None:
        raise Rejected("unknown_source", f"data set {dataset!r} has no domain; add it to questions.domains")
    return domain


def _format(fields: Mapping[str, Any], rule: Benchmark, has_choices: bool) -> Format | None:
    """By the row's own word, else by the benchmark's; options without either are multiple choice."""
    for name in rule.format_field:
        value = fields.get(name)
        if value is None:
            continue
        words = _NO_LETTERS.sub("_", value.strip().lower()) if isinstance(value, str) else ""
        if words not in FORMATS:
            raise Rejected("bad_format", f"{str(value)[:40]!r} in field {name!r} is no format; known: {_KNOWN_FORMATS}")
        return FORMATS[words]
    return rule.format or ("multiple_choice" if has_choices else None)


def _field(fields: Mapping[str, Any], names: Sequence[str], what: str, used: set[str]) -> Any:
    """The first of the named fields that the row has; its name is added to `used`."""
    for name in names:
        if fields.get(name) is not None:
            used.add(name)
            return fields[name]
    listed = " or ".join(repr(name) for name in names)
    if any(name in fields for name in names):
        raise Rejected("null_field", f"the {what} in field {listed} is null")
    raise Rejected("missing_field", f"the row has no {what} in field {listed}; it has {_names(fields)}")


def _names(fields: Mapping[str, Any]) -> str:
    return ", ".join(repr(str(name)[:40]) for name in list(fields)[:12]) or "no fields"


def _question(fields: Mapping[str, Any], source: SourceSettings, rule: Benchmark, used: set[str]) -> str:
    if source.question_field:
        return question_text(_field(fields, (source.question_field,), "question", used))
    text = question_text(_field(fields, rule.question, "question", used))
    if rule.prefix:
        text = f"{question_text(_field(fields, rule.prefix, 'story', used))} {text}"
    return text


def question_text(value: Any) -> str:
    """A question as stripped text; raises Rejected for anything else."""
    if not isinstance(value, str):
        raise Rejected("wrong_type", f"the question is of type {type(value).__name__}, not text")
    if not value.strip():
        raise Rejected("empty_question", "the question is empty")
    return value.strip()


def benchmark_question(row: InputRow, source: SourceSettings, settings: QuestionsSettings) -> str | None:
    """The question of a benchmark row, as far as it has a usable one."""
    rule = settings.benchmark_of(source.dataset_name)
    try:
        return _question(row.value, source, rule, set()) if row.value is not None else None
    except Rejected:
        return None


def _as_text(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise Rejected("wrong_type", f"the {what} holds a value of type {type(value).__name__}: {str(value)[:60]!r}")


def _answers(value: Any, form: AnswerForm, choices: Sequence[str]) -> tuple[str, ...]:
    if form == "first_item":
        value = value[:1] if isinstance(value, list) else value
    if isinstance(value, Mapping) and "aliases" in value:
        value = [value.get("value"), *(value.get("aliases") or [])]
    items = value if isinstance(value, list | tuple) else [value]
    if len(items) > _MAX_ANSWERS:
        raise Rejected("too_long", f"{len(items):,} gold answers; at most {_MAX_ANSWERS:,} are taken")
    texts = [_formed(_as_text(item, "answer"), form, choices) for item in items]
    answers = tuple(dict.fromkeys(text for text in texts if text))
    if not answers:
        raise Rejected("empty_answer", "the row has no gold answer that is not empty")
    return answers


def _formed(text: str, form: AnswerForm, choices: Sequence[str]) -> str:
    if form == "gsm8k":
        match = _GSM8K_ANSWER.search(text)
        if match is None or not (number := match[1].replace(",", "").rstrip(".")):
            raise Rejected("bad_answer", "the worked solution has no number after '#### '")
        return number
    if form == "boxed_solution":
        return last_box(text) or text
    if form == "before_parenthesis":
        return text.partition(" (")[0].strip()
    if form == "choice_index":
        if not text.isdecimal() or int(text) >= len(choices):
            raise Rejected("bad_answer", f"{text[:20]!r} is not the number of one of {len(choices)} options")
        return string.ascii_uppercase[int(text)]
    return text


def _option_columns(fields: Mapping[str, Any], names: Sequence[str]) -> Sequence[str]:
    """Columns with an option, from the first on; raises Rejected for a gap, behind which letters would be others'."""
    has_option = [fields.get(name) is not None for name in names]
    count = sum(has_option)
    if not all(has_option[:count]):
        raise Rejected(
            "bad_choices", f"option {names[has_option.index(False)]!r} is missing or null, but one behind it is not"
        )
    return names[:count]


def _choices(fields: Mapping[str, Any], source: SourceSettings, rule: Benchmark, used: set[str]) -> tuple[str, ...]:
    names = (source.choices_field,) if source.choices_field else rule.choices
    columns = [] if source.choices_field else _option_columns(fields, rule.choice_columns)
    if columns:
        used.update(columns)
        values: Any = [fields[name] for name in columns]
    elif any(fields.get(name) is not None for name in names):
        values = _field(fields, names, "list of options", used)
    else:
        return ()
    if not isinstance(values, list | tuple):
        raise Rejected("wrong_type", f"the options are of type {type(values).__name__}, not a list")
    choices = tuple(_as_text(value, "list of options") for value in values)
    if choices and not (2 <= len(choices) <= _MAX_CHOICES and all(choices)):
        raise Rejected("bad_choices", f"{len(choices)} options, of which {choices.count('')} empty; 2 to 26 are needed")
    return choices


def _letters(answers: Sequence[str], choices: Sequence[str]) -> tuple[str, ...]:
    """Gold answers of a multiple-choice question as letters; an answer may also be an option's text."""
    allowed = string.ascii_uppercase[: len(choices)]
    letters = []
    for answer in answers:
        match = _LETTER.fullmatch(answer)
        if match is not None and match[1] in allowed:
            letters.append(match[1])
        elif answer in choices:
            letters.append(allowed[choices.index(answer)])
        else:
            raise Rejected("bad_answer", f"{answer[:60]!r} is none of the {len(choices)} options")
    return tuple(dict.fromkeys(letters))


def _check_lengths(question: str, answers: Sequence[str], choices: Sequence[str], settings: QuestionsSettings) -> None:
    length = len(question) + sum(map(len, choices))
    if length > settings.max_question_chars:
        limit = settings.max_question_chars
        raise Rejected("too_long", f"the question has {length:,} characters; the limit is {limit:,}")
    longest = max(map(len, answers))
    if longest > settings.max_answer_chars:
        limit = settings.max_answer_chars
        raise Rejected("too_long", f"a gold answer has {longest:,} characters; the limit is {limit:,}")


def check_text(text: str) -> None:
    """Raise Rejected for characters that no tokenizer or file takes."""
    if "\0" in text:
        raise Rejected("nul_character", f"NUL at character {text.index(chr(0)) + 1} of {text[:40]!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise Rejected("lone_surrogate", f"lone surrogate U+{code:04X} at character {error.start + 1}") from None


def noting_splits(rows: Iterable[InputRow], source: SourceSettings) -> Iterator[InputRow]:
    """The rows of a source; says once where their own split is ignored and would have kept one out of training."""
    is_settled = source.split is not None or source.split_field is not None
    for row in rows:
        if not is_settled and row.value is not None and (found := _ignored_split(row.value)):
            is_settled = True
            _log.warning(
                "questions of %s are trained on whatever their column %r says (row %d: %r): set split_field = %r, "
                'or split = "train" if that is meant',
                source.label,
                found[0],
                row.number,
                found[1][:40],
                found[0],
            )
        yield row


def _ignored_split(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """A column that looks like a split and its value, where that is not of training."""
    for name, value in fields.items():
        if isinstance(name, str) and name.strip().lower() == _SPLIT_COLUMN and isinstance(value, str) and value.strip():
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
        raise Rejected("bad_split", f"{str(value)[:40]!r} is not a split; known are {', '.join(_SPLITS)}")
    return split


def _json(meta: Mapping[str, Any]) -> str:
    """The other fields as JSON that every reader takes."""
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
