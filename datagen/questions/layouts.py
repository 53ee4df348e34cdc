"""Recognise by a row's field names where its question and answer are, using the table layouts.toml.

Also rejects rows that cannot be asked as text: pictures, attached files, encrypted fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from treadle.core.config import Section, read_toml, validate
from treadle.datagen.questions.benchmarks import AnswerForm, Names


class RowRejected(Exception):
    """Exception for a row that does not become a question: `reason` is a code, the message one sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class AnswerLayout(Section):
    """A field with gold answers, and related fields."""

    field: str
    """Path of the field."""
    form: AnswerForm = "plain"
    """Form of the answer in its field."""
    aliases: Names = ()
    """Fields with further accepted answers."""
    requires: Names = ()
    """Fields that the row must have as well."""
    wrong: Names = ()
    """Fields with the options other than the answer."""
    choice_columns: Names = ()
    """Fields with one option each."""


class _Placeholders(Section):
    requires: str
    values: Names


class _Pictures(Section):
    fields: str
    words: str
    file: str
    text: str


class _Attachments(Section):
    fields: Names
    requires: Names


class _Encrypted(Section):
    requires: str
    text: str


class Layouts(Section):
    """Field names of published data sets."""

    question: Names
    """Fields of the question, in order of preference."""
    choices: Names
    """Fields with all options."""
    prompt_prefixes: Names
    """Texts that may precede the question in a chat message."""
    prompt_suffixes: Names
    """Texts that may follow the question in a chat message."""
    stories: Names
    """Fields with the first sentences of a word problem."""
    passages: Names
    """Fields with a text to read."""
    shortest_passage_chars: int
    request: str
    """Field of a request, which is put before its input in `request_input`."""
    request_input: str
    answers: tuple[AnswerLayout, ...] = Field(min_length=1)
    """Fields of the answer, in order of preference."""
    placeholders: tuple[_Placeholders, ...]
    pictures: _Pictures
    attachments: _Attachments
    encrypted: _Encrypted

    def answer_of(self, fields: Mapping[str, Any]) -> AnswerLayout | None:
        """Return the first layout whose fields the row has; None if there is none."""
        for layout in self.answers:
            if all(at(fields, path) is not None for path in (layout.field, *layout.requires)):
                return layout
        return None

    def aliases_of(self, field: str) -> Names:
        """Return the fields with further answers of rows whose answer is in `field`."""
        return next((layout.aliases for layout in self.answers if layout.field == field), ())

    def is_placeholder(self, fields: Mapping[str, Any], answer: str) -> bool:
        """Return whether an answer is a placeholder for a missing answer."""
        return any(known.requires in fields and answer.casefold() in known.values for known in self.placeholders)


LAYOUTS = validate(Layouts, read_toml(Path(__file__).with_name("layouts.toml")))
_PICTURE_FIELD = re.compile(LAYOUTS.pictures.fields, re.IGNORECASE)
_PICTURE_WORD = re.compile(LAYOUTS.pictures.words, re.IGNORECASE)
_PICTURE_FILE = re.compile(LAYOUTS.pictures.file, re.IGNORECASE)
_EMPTY_VALUES = frozenset({"", "false", "no", "none", "null", "nan", "n/a", "0", "[]", "{}"})
_DATA = re.compile(r"\s*(?:\[\s*[\[{\"']|\{\s*[\"'])")
_STORY = re.compile(r"(?=\S+\s+\S+\s+\S).*(?:\d|[.!?])", re.DOTALL)
_PICTURE_TEXT = re.compile(LAYOUTS.pictures.text, re.IGNORECASE)


def at(fields: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path in a row; lists on the path are flattened. None if there is no value."""
    if path in fields:
        return fields[path]
    found: Any = fields
    for name in path.split("."):
        if isinstance(found, list | tuple):
            items = [item.get(name) for item in found if isinstance(item, Mapping)]
            found = [one for item in items if item is not None for one in (item if isinstance(item, list) else [item])]
            if not items:
                return None
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found


def names_of(fields: Mapping[str, Any]) -> str:
    """Return the names of a row's fields for a message."""
    return ", ".join(repr(str(name)[:40]) for name in list(fields)[:12]) or "no fields"


def check_not_encrypted(fields: Mapping[str, Any], question: str) -> None:
    """Raise RowRejected if the question is encrypted."""
    known = LAYOUTS.encrypted
    marker = next((name for name in fields if name.lower() == known.requires and fields[name]), None)
    if marker is not None and re.fullmatch(known.text, question):
        raise RowRejected(
            "encrypted",
            f"the question is encrypted (base64, with a marker field {marker!r}); provide decrypted rows; "
            f"the row has {names_of(fields)}",
        )


def check_is_text(fields: Mapping[str, Any], texts: Sequence[str]) -> None:
    """Raise RowRejected if the question needs more than text: a picture, a sound or a file."""
    for name in fields:
        is_flag = _PICTURE_FIELD.fullmatch(name.strip()) and _has_content(fields[name])
        if is_flag or (_PICTURE_WORD.fullmatch(name.strip()) and _is_picture(fields[name])):
            raise RowRejected("needs_picture", f"the question needs the picture or sound in field {name[:40]!r}")
    for text in texts:
        if match := _PICTURE_TEXT.search(text):
            raise RowRejected("needs_picture", f"the text embeds a picture or sound: {match[0][:60]!r}")
    attachments = LAYOUTS.attachments
    if all(name in fields for name in attachments.requires):
        for name in attachments.fields:
            if _has_content(fields.get(name)):
                raise RowRejected("needs_file", f"the question needs an attached file: {str(fields[name])[:60]!r}")


def _has_content(value: Any) -> bool:
    """Return whether a field has any content: an image may be an object whose values are all null."""
    if isinstance(value, Mapping):
        return any(_has_content(part) for part in value.values())
    if isinstance(value, list | tuple):
        return any(_has_content(part) for part in value)
    if isinstance(value, str):
        return value.strip().rstrip(".").casefold() not in _EMPTY_VALUES
    return bool(value) and not (isinstance(value, float) and math.isnan(value))


def _is_picture(value: Any) -> bool:
    """Return whether a value is a picture or the path of one, or a list with one."""
    if isinstance(value, Mapping):
        return any(_has_content(value.get(name)) for name in ("bytes", "path"))
    if isinstance(value, list | tuple):
        return any(map(_is_picture, value))
    if isinstance(value, str):
        return _PICTURE_FILE.fullmatch(value.strip()) is not None
    return isinstance(value, bytes) and bool(value)


def question_of(value: Any) -> str:
    """Return the question from a text, an object with a text or chat messages; raise RowRejected otherwise."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "role" in item for item in value):
        return _without_instructions(_of_messages(value))
    if isinstance(value, Mapping) and "text" in value:
        value = value["text"]
    if not isinstance(value, str):
        raise RowRejected("wrong_type", f"the question is of type {type(value).__name__}, not text")
    if not value.strip():
        raise RowRejected("empty_question", "the question is empty")
    return value.strip()


def story_of(fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the field with the first sentences of a word problem, and its text; both empty if none."""
    found = _texts(fields, LAYOUTS.stories)
    return next(((name, text) for name, text in found if _STORY.match(text)), ("", ""))


def passage_of(fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the field with the text to read, and the text; both empty if there is none."""
    shortest = LAYOUTS.shortest_passage_chars
    found = _texts(fields, LAYOUTS.passages)
    return next(((name, text) for name, text in found if len(text) >= shortest), ("", ""))


def _texts(fields: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and _has_content(value) and not _DATA.match(value):
            yield name, value.strip()


def _of_messages(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the single user message; system messages are ignored as another agent's instructions."""
    asked = [message for message in messages if message["role"] != "system"]
    if len(asked) != 1 or asked[0]["role"] != "user":
        roles = ", ".join(str(message["role"])[:20] for message in messages[:8])
        raise RowRejected("wrong_type", f"the question is a conversation, not a single user message: {roles}")
    content = asked[0].get("content")
    text = "\n".join(_parts(content)) if isinstance(content, list) else content
    return question_of(text if isinstance(text, str) else None)


def _parts(content: Sequence[Any]) -> Iterator[str]:
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise RowRejected("needs_picture", f"a message has a part that is not text: {str(part)[:60]!r}")
        yield text


def _without_instructions(text: str) -> str:
    for prefix in LAYOUTS.prompt_prefixes:
        text = text.removeprefix(prefix).strip()
    for suffix in LAYOUTS.prompt_suffixes:
        text = text.removesuffix(suffix).strip()
    return question_of(text)
