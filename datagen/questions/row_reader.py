"""Find question, answers and options in the fields of a row."""

from __future__ import annotations

import hashlib
import json
import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treadle.core.answers.extraction import last_box
from treadle.core.answers.ground_truth import BadGroundTruth, GroundTruth, decode
from treadle.core.config import canonical_json
from treadle.datagen.questions.benchmarks import AnswerForm, Benchmark
from treadle.datagen.questions.layouts import (
    LAYOUTS,
    AnswerLayout,
    RowRejected,
    at,
    check_not_encrypted,
    names_of,
    passage_of,
    question_of,
    story_of,
)
from treadle.datagen.questions.sources import SourceSettings

_WORKED_ANSWER = re.compile(r"(?:\A|\n)####[ \t]*(\S[^\n]{0,99})\s*\Z")
_NUMBER = re.compile(r"(-?)\$?(-?[0-9][0-9.,]*)")
_SENTENCES = re.compile(r"[.!?]\s|\n")
_LONGEST_SHORT_ANSWER_CHARS = 80
_MAX_ANSWERS = 1_000
_MAX_NAMES_SHOWN = 4
_LETTER = re.compile(r"\(?([A-Z])[).]?")
_MAX_CHOICES = len(string.ascii_uppercase)
_KNOWN_ANSWERS = tuple(layout.field for layout in LAYOUTS.answers)


@dataclass(frozen=True, slots=True)
class Options:
    """Texts of the options in their order, with the row's labels for them."""

    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    are_text: bool = True
    """False if the row has the options as numbers: a number as the answer is then an option, not a position."""
    right: str = ""
    """Letter of the right option, if the row has it in a separate field."""

    def letter_of_index(self, place: str) -> str:
        """Return the letter of an option by its 0-based position; raise RowRejected if there is none."""
        if not place.isdecimal() or int(place) >= len(self.texts):
            raise RowRejected("bad_answer", f"{place[:20]!r} is not an index into {len(self.texts)} options")
        return string.ascii_uppercase[int(place)]

    def letter(self, answer: str) -> str:
        """Return the letter of an option by its label, its letter or its text; raise RowRejected if there is none."""
        letters = string.ascii_uppercase[: len(self.texts)]
        match = _LETTER.fullmatch(answer)
        if answer in self.labels:
            return letters[self.labels.index(answer)]
        if match is not None and match[1] in letters:
            return match[1]
        if answer in self.texts:
            return letters[self.texts.index(answer)]
        raise RowRejected("bad_answer", f"{answer[:60]!r} matches none of the {len(self.texts)} options")


@dataclass(frozen=True, slots=True)
class Gold:
    """The field of a row with its answers, and their form."""

    layout: AnswerLayout
    value: Any
    form: AnswerForm | None
    """Form of the answers; None: inferred from the value."""


NO_GOLD = Gold(AnswerLayout(field=""), None, None)
"""Placeholder for the answers of a task that has none."""


class RowReader:
    """Reader of question, answers and options in a row.

    Each is in the field that the source names, else in the benchmark's. For a benchmark that is shipped or generic, the
    fields of layouts.toml are tried after its own.
    """

    def __init__(self, fields: Mapping[str, Any], source: SourceSettings, rule: Benchmark, is_own: bool) -> None:
        self._fields, self._source, self._rule = fields, source, rule
        self._uses_known_layouts = not is_own
        self.used = {name for name in (source.source_field, source.split_field) if name}
        """Fields that are not copied into `meta`."""

    def question(self, *, with_passage: bool = True) -> str:
        """Return the question, preceded by its story and, if `with_passage`, by the passage that it refers to."""
        if self._source.question_field:
            return self._text((self._source.question_field,), "question")
        if not self._uses_known_layouts:
            text = self._text(self._rule.question, "question")
            return f"{self._text(self._rule.prefix, 'story')} {text}" if self._rule.prefix else text
        text = self._question_with_request(tuple(dict.fromkeys((*self._rule.question, *LAYOUTS.question))))
        if self._rule.prefix:
            return f"{self._text(self._rule.prefix, 'story')} {text}"
        text = self._prepend(story_of(self._fields), " ", text)
        if with_passage and self._rule.search != "local":
            text = self._prepend(passage_of(self._fields), "\n\n", text)
        return text

    def _question_with_request(self, names: Sequence[str]) -> str:
        """Return the question; if it is the input of a request, the request followed by the input."""
        request = self._fields.get(LAYOUTS.request)
        if self._first(names) != LAYOUTS.request_input or not isinstance(request, str) or not request.strip():
            return self._text(names, "question")
        self.used.update((LAYOUTS.request, LAYOUTS.request_input))
        given = self._fields[LAYOUTS.request_input]
        if isinstance(given, str) and not given.strip():
            return question_of(request)
        return f"{request.strip()}\n\n{question_of(given)}"

    def _prepend(self, named: tuple[str, str], separator: str, question: str) -> str:
        """Return the question with a field's text before it, unless it contains the text or the text is an answer.

        `named` is the name of the field and its text.
        """
        name, text = named
        if not text or text in question or text.casefold() in self._answers():
            return question
        self.used.add(name)
        return f"{text}{separator}{question}"

    def _answers(self) -> set[str]:
        try:
            gold = self.gold()
        except RowRejected:
            return set()
        return {item.strip().casefold() for item in _items(gold.value, gold.form) if isinstance(item, str)}

    def gold(self) -> Gold:
        """Return the field with the answers; raise RowRejected if there is none."""
        named, form = self._source.answer_field, self._source.answer_form
        names = (named,) if named else self._rule.answer
        name = self._first(names)
        if name is not None:
            if form is None and not named and self._rule.answer_form != "plain":
                form = self._rule.answer_form
            aliases = LAYOUTS.aliases_of(name) if form in (None, "plain") else ()
            layout = AnswerLayout(field=name, aliases=aliases)
        elif named or not self._uses_known_layouts or (found := LAYOUTS.answer_of(self._fields)) is None:
            raise self._missing(names if named or not self._uses_known_layouts else (*names, *_KNOWN_ANSWERS), "answer")
        else:
            layout = found
            form = form or (None if layout.form == "plain" else layout.form)
        self.used.update((layout.field, *layout.aliases, *layout.wrong))
        return Gold(layout, at(self._fields, layout.field), form)

    def options(self, gold: Gold, question: str) -> Options:
        """Return the options; empty if the row has none."""
        if self._source.choices_field:
            return self._options_in(self._source.choices_field)
        if wrong := _flatten([at(self._fields, name) for name in gold.layout.wrong]):
            return shuffled(question, _as_text(gold.value, "answer"), [_as_text(text, "option") for text in wrong])
        if columns := _columns_with_options(self._fields, gold.layout.choice_columns or self._rule.choice_columns):
            self.used.update(columns)
            return read_options([self._fields[name] for name in columns])
        name = self._first(self._rule.choices)
        if name is None and self._uses_known_layouts and not self._source.answer_field:
            name = next((name for name in LAYOUTS.choices if _may_be_options(self._fields.get(name))), None)
        return self._options_in(name)

    def _options_in(self, name: str | None) -> Options:
        if name is None or at(self._fields, name) is None:
            return Options()
        self.used.add(name)
        return read_options(at(self._fields, name))

    def _text(self, names: Sequence[str], what: str) -> str:
        name = self._first(names)
        if name is None:
            raise self._missing(names, what)
        self.used.add(name)
        text = question_of(at(self._fields, name))
        check_not_encrypted(self._fields, text)
        return text

    def _first(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if at(self._fields, name) is not None), None)

    def _missing(self, names: Sequence[str], what: str) -> RowRejected:
        if null := next((name for name in names if name in self._fields), None):
            return RowRejected("null_field", f"the {what} in field {null!r} is null or empty")
        if len(names) <= _MAX_NAMES_SHOWN:
            where = f"in field {' or '.join(repr(name) for name in names)}"
        else:
            where = "in any known field"
        advice = f"set {what}_field of the source to its name"
        detail = f"the row has no {what} {where}; it has {names_of(self._fields)}; {advice}"
        return RowRejected("missing_field", detail)


def _flatten(values: Sequence[Any]) -> list[Any]:
    """Return the values that are not null, with lists flattened."""
    return [one for value in values for one in (value if isinstance(value, list) else [value]) if one is not None]


def answers_of(fields: Mapping[str, Any], gold: Gold, options: Options) -> tuple[str, ...]:
    """Return the accepted answers, the main one first; for a question with options, their letters."""
    if options.right:
        return (options.right,)
    items = _items(gold.value, gold.form)
    if not options.texts:
        items += _flatten([at(fields, name) for name in gold.layout.aliases])
    if len(items) > _MAX_ANSWERS:
        raise RowRejected("too_long", f"{len(items):,} gold answers; at most {_MAX_ANSWERS:,} are allowed")
    texts = [_convert_answer(item, gold.form, options) for item in items]
    answers = tuple(dict.fromkeys(text for text in texts if text))
    if not answers:
        raise RowRejected("empty_answer", "the row has no non-empty gold answer")
    if LAYOUTS.is_placeholder(fields, answers[0]):
        raise RowRejected("no_gold_answer", f"the answer {answers[0]!r} is a placeholder for a missing answer")
    return answers


def _items(value: Any, form: AnswerForm | None) -> list[Any]:
    """Return the single answers in a list, in an object `{value, aliases}`, or in a list as JSON text."""
    if isinstance(value, Mapping) and "aliases" in value:
        return [value.get("value"), *(value.get("aliases") or [])]
    if form == "ground_truth":
        return list(_ground_truth(value).answers)
    if form == "json_list" and isinstance(value, str):
        value = _list_of_strings(value)
    if form == "first_item" and isinstance(value, list):
        return value[:1]
    return list(value) if isinstance(value, list | tuple) else [value]


def _ground_truth(value: Any) -> GroundTruth:
    """Return the ground truth of a row for verl; raise RowRejected if it cannot be read or is a program's tests."""
    try:
        truth = decode(value)
    except BadGroundTruth as error:
        raise RowRejected("bad_answer", str(error)) from None
    if truth.tests is not None:
        raise RowRejected("no_gold_answer", "the row has tests of a program and no gold answer")
    return truth


def _list_of_strings(text: str) -> Any:
    """Return the list of strings in a JSON text; the text itself if it is anything else, such as an interval."""
    try:
        value = json.loads(text) if text.lstrip().startswith("[") else text
    except ValueError:
        return text
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else text


def _convert_answer(item: Any, form: AnswerForm | None, options: Options) -> str:
    """Return one answer in the form that is compared: the letter of an option, or a text."""
    text = _as_text(item, "answer")
    if options.texts and text:
        is_place = form is None and isinstance(item, int) and not isinstance(item, bool) and options.are_text
        if form == "choice_index" or (is_place and text not in options.labels):
            return options.letter_of_index(text)
        return options.letter(_text_of(text, form))
    return _text_of(text, form)


def _text_of(text: str, form: AnswerForm | None) -> str:
    if form == "gsm8k":
        worked = _plain_number(text.rpartition("#### ")[2].partition("\n")[0]) if "#### " in text else ""
        if not any(character.isdigit() for character in worked):
            raise RowRejected("bad_answer", "the worked solution has no number after '#### '")
        return worked
    if form is None:
        return _worked_answer(text) or text
    if form in ("boxed_solution", "last_box"):
        if found := last_box(text) or _worked_answer(text):
            return found
        is_short = len(text) <= _LONGEST_SHORT_ANSWER_CHARS and not _SENTENCES.search(text)
        if form == "last_box" or not is_short:
            raise RowRejected("no_gold_answer", "the solution has neither a box nor a last line '#### ' with an answer")
        return text
    if form == "before_parenthesis":
        return text.partition(" (")[0].strip()
    if form == "choice_index":
        raise RowRejected("bad_answer", f"{text[:20]!r} is the number of an option, but the row has no options")
    return text


def _worked_answer(text: str) -> str:
    """Return the answer in the last line of a worked solution, `#### 1,234`; empty if there is none."""
    match = _WORKED_ANSWER.search(text)
    return _plain_number(match[1]) if match else ""


def _plain_number(answer: str) -> str:
    """Return a number without thousands separators and leading dollar sign; any other text is only stripped."""
    number = _NUMBER.fullmatch(answer.strip())
    return (number[1] + number[2]).replace(",", "").rstrip(".") if number else answer.strip()


def _as_text(value: Any, what: str) -> str:
    """Return text, a number or a boolean as stripped text; raise RowRejected for anything else."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise RowRejected("wrong_type", f"the {what} holds a value of type {type(value).__name__}: {str(value)[:60]!r}")


def _may_be_options(value: Any) -> bool:
    """Return whether the value of an options field may contain options."""
    return bool(value) and (isinstance(value, list | Mapping) or (isinstance(value, str) and value[0] in "[{"))


def read_options(value: Any) -> Options:
    """Return the options in a field: a list, or an object of labels and texts in one of the usual forms.

    Objects: label -> text; `label` and `text` (or `labels` and `texts`) with a list each; or a list of objects `{label,
    text}`. Nulls after the last option are ignored. A list may be JSON text. Raises RowRejected for anything else.
    """
    if isinstance(value, str) and _may_be_options(value):
        value = _json_of(value)
    labels: Sequence[Any] = ()
    if isinstance(value, Mapping):
        labels, value = _of_object(value)
    elif isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
        labels = [item.get("label", item.get("key", "")) for item in value]
        value = [item.get("text", item.get("value")) for item in value]
    if not isinstance(value, list | tuple):
        raise RowRejected("wrong_type", f"the options are of type {type(value).__name__}, not a list")
    values = list(value)
    while values and values[-1] is None:
        values.pop()
    texts = tuple(_as_text(item, "list of options") for item in values)
    if texts and not (2 <= len(texts) <= _MAX_CHOICES and all(texts)):
        raise RowRejected("bad_choices", f"{len(texts)} options, of which {texts.count('')} empty; 2 to 26 are needed")
    known = tuple(_as_text(label, "labels of the options") for label in labels[: len(texts)])
    are_labels = len(set(known)) == len(texts) and all(known)
    return Options(texts, known if are_labels else (), all(isinstance(item, str) for item in values))


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RowRejected("wrong_type", f"the options are text, but not valid JSON: {text[:60]!r}") from None


def _of_object(value: Mapping[str, Any]) -> tuple[Sequence[Any], Any]:
    for label, text in (("label", "text"), ("labels", "texts"), ("labels", "choices")):
        if isinstance(value.get(label), list) and isinstance(value.get(text), list):
            return value[label], value[text]
    return list(value), list(value.values())


def _columns_with_options(fields: Mapping[str, Any], names: Sequence[str]) -> Sequence[str]:
    """Return the columns with an option, from the first on; raise RowRejected for a gap, which would shift letters."""
    has_option = [fields.get(name) is not None for name in names]
    count = sum(has_option)
    if not all(has_option[:count]):
        raise RowRejected(
            "bad_choices", f"option {names[has_option.index(False)]!r} is missing or null, but a later one is not"
        )
    return names[:count]


def shuffled(question: str, right: str, wrong: Sequence[str]) -> Options:
    """Return the options in an order that depends on the question and their texts, so that no position is favoured."""
    if right in wrong:
        raise RowRejected("bad_choices", f"the answer {right[:60]!r} is also among the wrong options")
    texts = sorted((right, *wrong), key=lambda text: hashlib.sha256(canonical_json([question, text])).digest())
    options = read_options(texts)
    return replace(options, right=string.ascii_uppercase[options.texts.index(right)])
