"""Parse the options of a multiple-choice question, in the forms of published data sets, and find the right one."""

from __future__ import annotations

import hashlib
import json
import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treadle.core.config import canonical_json
from treadle.datagen.questions.layouts import RowRejected

_LETTER = re.compile(r"\(?([A-Z])[).]?")
_MAX_CHOICES = len(string.ascii_uppercase)


def as_text(value: Any, what: str) -> str:
    """Return text, a number or a boolean as stripped text; raise RowRejected for anything else."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise RowRejected("wrong_type", f"the {what} holds a value of type {type(value).__name__}: {str(value)[:60]!r}")


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


def may_be_options(value: Any) -> bool:
    """Return whether the value of an options field may contain options."""
    return bool(value) and (isinstance(value, list | Mapping) or (isinstance(value, str) and value[0] in "[{"))


def read_options(value: Any) -> Options:
    """Return the options in a field: a list, or an object of labels and texts in one of the usual forms.

    Objects: label -> text; `label` and `text` (or `labels` and `texts`) with a list each; or a list of objects `{label,
    text}`. Nulls after the last option are ignored. A list may be JSON text. Raises RowRejected for anything else.
    """
    if isinstance(value, str) and may_be_options(value):
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
    texts = tuple(as_text(item, "list of options") for item in values)
    if texts and not (2 <= len(texts) <= _MAX_CHOICES and all(texts)):
        raise RowRejected("bad_choices", f"{len(texts)} options, of which {texts.count('')} empty; 2 to 26 are needed")
    known = tuple(as_text(label, "labels of the options") for label in labels[: len(texts)])
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


def columns_with_options(fields: Mapping[str, Any], names: Sequence[str]) -> Sequence[str]:
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
