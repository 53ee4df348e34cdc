"""Multiple choice: is the option that the prediction names one of the right ones?

Word-level rules must not touch option letters: removing articles would erase the option `A`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from treadle.core.answers.extraction import unwrap_command
from treadle.core.answers.text_match import normalize_math, normalize_text

_LETTER = re.compile(r"[\s*_$\"'`]*[(\[]?\s*([A-Za-z])\s*[)\]]?[\s*_$\"'`.:,]*")
_LABEL = re.compile(r"[\s*_$\"'`]*(?:[(\[]\s*([A-Za-z])\s*[)\]]|([A-Za-z])\s*[.):](?![A-Za-z0-9]))")
_BRACKETED = re.compile(r"[(\[]\s*([A-Za-z])\s*[)\]]")
_GOLD_LETTER = re.compile(r"\s*(?:[A-Za-z]|\([A-Za-z]\)|\[[A-Za-z]\])\s*")

_MAX_CHARS = 4_000
"""A prediction that names an option is short; longer ones are cut before they meet a pattern."""


def is_letter(gold: str) -> bool:
    """Whether a gold answer is a single letter, possibly in brackets."""
    return _GOLD_LETTER.fullmatch(gold) is not None


def match_choice(prediction: str, answers: Sequence[str], choices: Sequence[str] = ()) -> bool:
    """Whether the prediction names a right option, by its letter or by its text.

    `answers` are letters, option texts or both (`(B) Paris`); `choices` are the texts of A, B, …, or empty where the
    options stand in the question alone. A bare letter is read as a letter, then the whole text is compared with the
    options, then a letter in front of the text (`B. Paris`, `(B) Paris`) or the only bracketed letter in it decides.
    Without `choices` the text of a right option is right too; nothing but letter case, white space and a full stop is
    overlooked then, because what it would be confused with (`K+`, `K-`) is not known.
    """
    prediction = prediction[:_MAX_CHARS]
    wanted = {option for gold in answers if (option := _named_option(gold[:_MAX_CHARS], choices)) is not None}
    if _named_option(prediction, choices) in wanted:
        return True
    return not choices and _exact_form(prediction) in {_exact_form(_without_label(gold)) for gold in answers} - {""}


def _without_label(gold: str) -> str:
    bare = _bare(gold[:_MAX_CHARS])
    match = _LABEL.match(bare)
    return bare[match.end() :] if match else bare


def _exact_form(text: str) -> str:
    return normalize_math(_bare(text)).rstrip(". ")


def _bare(text: str) -> str:
    return unwrap_command(_collapse(text).strip("$ "), ("text", "mathrm", "textbf", "mathbf")).strip()


def _named_option(text: str, choices: Sequence[str]) -> int | None:
    text = _bare(text)
    if match := _LETTER.fullmatch(text):
        option = _index(match[1], choices)
        if option is not None:
            return option
    option = _by_text(text, choices)
    if option is not None:
        return option
    if match := _LABEL.match(text):
        return _index(match[1] or match[2], choices)
    letters = {letter.upper() for letter in _BRACKETED.findall(text)}
    return _index(letters.pop(), choices) if len(letters) == 1 else None


def _index(letter: str, choices: Sequence[str]) -> int | None:
    index = ord(letter.upper()) - ord("A")
    return index if not choices or index < len(choices) else None


def _by_text(text: str, choices: Sequence[str]) -> int | None:
    """The one option with this text, compared ever less strictly; None if there is none or more than one."""
    for form in (_collapse, _option_form):
        wanted = form(text)
        hits = [index for index, choice in enumerate(choices) if wanted and form(choice) == wanted]
        if hits:
            return hits[0] if len(hits) == 1 else None
    return None


def _collapse(text: str) -> str:
    return " ".join(text.split())


def _option_form(text: str) -> str:
    # Deleting punctuation would make the options 1/2 and 12 the same.
    if any(character.isdigit() for character in text):
        return normalize_math(text).rstrip(".")
    return normalize_text(text)
