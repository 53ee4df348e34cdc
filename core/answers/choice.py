"""Decide whether the option that a prediction names in a multiple-choice question is a right one.

Word-level rules must not touch option letters: removing articles would delete the option `A`. How letters are found in
a sentence: `core/answers/choice_letters.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from treadle.core.answers.choice_letters import LEAD_IN, letters_named
from treadle.core.answers.extraction import unwrap_command
from treadle.core.answers.text_match import collapse, normalize_math, normalize_text, plain_typography

_COMMANDS = ("text", "mathrm", "textbf", "mathbf", "textit", "mbox", "boxed", "fbox")
_MARKED_LETTER = re.compile(
    r"(?P<mark>\*{1,3}|__?|`|[\"'])\s?[(\[]?(?P<letter>[A-Za-z])[)\]]?[.:]?\s?(?P=mark)(?![A-Za-z0-9])"
    rf"|\\(?:{'|'.join(_COMMANDS)})\s?\{{\s?[(\[]?(?P<inside>[A-Za-z])[)\]]?\s?\}}"
)
_MARKS = re.compile(r"(?<![A-Za-z0-9])[*_`]+|[*_`]+(?![A-Za-z0-9])")
_HEADING = re.compile(r"^\s*#{1,6}\s", re.MULTILINE)
_DOLLARS = re.compile(r"\$\s?([A-Za-z])\s?\$")

_GOLD_LETTER = re.compile(r"\s*(?:[A-Za-z]|\([A-Za-z]\)|\[[A-Za-z]\])\s*")
_LETTER = re.compile(r"[\s$\"']*[(\[{<]?\s?([A-Za-z])\s?[)\]}>]?[\s$\"'.:,;!)\]]*")
_LABEL = re.compile(
    r"(?:[(\[]\s?([A-Za-z])\s?[)\]]|([A-Za-z])(?:\s?(?:\)|[.:,](?!\d|[A-Za-z](?![A-Za-z])))|\s(?=[-~]\s)))[\s.:,~-]*"
)
_LETTER_WORD = re.compile(r"([A-Za-z])\s")
_LABEL_BEHIND = re.compile(r"\s?[(\[]\s?([A-Za-z])\s?[)\]][\s.]*$")
_MAX_CHARS = 4_000
"""Longest text that is matched: predictions, answers and options are cut to this before any pattern sees them."""
_CACHED = 1_024
"""Maximum number of texts whose normal forms are cached, because the same options are compared with every rollout's
answer to a question."""


def is_letter(gold: str) -> bool:
    """Return whether a gold answer is a single letter, possibly in brackets."""
    return _GOLD_LETTER.fullmatch(plain_typography(gold)) is not None


def match_choice(prediction: str, answers: Sequence[str], choices: Sequence[str] = ()) -> bool:
    """Return whether the prediction names a right option, by its letter or by its text, and no other.

    `answers` are letters, option texts or both (`(B) Paris`). `choices` are the texts of A, B, …, or empty if only the
    question contains the options. In that case the text of a right option is right too. Only letter case, typography,
    white space and a full stop are ignored then, because similar options (`K+`, `K-`) are not known. See
    docs/behaviour/answers.md.
    """
    prediction = prediction[:_MAX_CHARS]
    answers, choices = ([text[:_MAX_CHARS] for text in texts] for texts in (answers, choices))
    wanted = {option for gold in answers if (option := _gold_option(gold, choices)) is not None}
    if _named_option(prediction, choices) in wanted:
        return True
    if choices:
        return False
    texts = {_exact_form(_without_label(_bare(gold))) for gold in answers} - {""}
    return any(_exact_form(reading) in texts for reading in _readings(prediction))


def _gold_option(gold: str, choices: Sequence[str]) -> int | None:
    """Return the index of a gold answer's option: by its letter, its text, or a letter before the text."""
    text = _bare(gold)
    if (match := _LETTER.fullmatch(text)) and (option := _index(match[1], choices)) is not None:
        return option
    if (option := _by_text(gold, choices)) is not None:
        return option
    match = _LABEL.match(text)
    return _index(match[1] or match[2], choices) if match else None


def _named_option(prediction: str, choices: Sequence[str]) -> int | None:
    """Return the index of the only option that a prediction names; None if it names none, or several."""
    for text in (prediction, *_readings(prediction)):
        if (match := _LETTER.fullmatch(text)) and (option := _index(match[1], choices)) is not None:
            return option
        if (option := _by_text(text, choices, _STRICT)) is not None:
            return option
        for letter, rest in _labelled(text):
            told = _by_text(rest, choices)
            if told is not None and (told == _index(letter, choices) or not _is_article(text, rest)):
                return told if told == _index(letter, choices) else None
        if (option := _by_text(text, choices)) is not None:
            return option
    named = {option for letter in letters_named(_bare(prediction)) if (option := _index(letter, choices)) is not None}
    return named.pop() if len(named) == 1 else None


def _is_article(text: str, rest: str) -> bool:
    """Return whether the letter before the rest may be a word, as in `A blue car`."""
    return text[:2] in ("A ", "a ") and text[2:] == rest


def _labelled(text: str) -> Iterator[tuple[str, str]]:
    """Yield a letter at the start, or in brackets at the end, with the rest of the text."""
    if match := _LABEL.match(text):
        yield match[1] or match[2], text[match.end() :]
    elif match := _LETTER_WORD.match(text):
        yield match[1], text[match.end() :]
    if match := _LABEL_BEHIND.search(text):
        yield match[1], text[: match.start()]


def _readings(text: str) -> Iterator[str]:
    """Yield the text, and what follows words such as `The answer is`."""
    bare = _bare(text)
    yield bare
    if match := LEAD_IN.match(bare):
        yield bare[match.end() :]


@lru_cache(_CACHED)
def _bare(text: str) -> str:
    """Return the text without markup; a letter that is marked up by itself is put in brackets."""
    text = collapse(_HEADING.sub("", plain_typography(text))).strip("$ ")
    text = _DOLLARS.sub(r"\1", unwrap_command(text, _COMMANDS))
    text = _MARKED_LETTER.sub(lambda match: f"({match['letter'] or match['inside']})", text)
    return collapse(_MARKS.sub("", text))


def _without_label(gold: str) -> str:
    match = _LABEL.match(gold)
    return gold[match.end() :] if match else gold


def _index(letter: str, choices: Sequence[str]) -> int | None:
    index = ord(letter.upper()) - ord("A")
    return index if not choices or index < len(choices) else None


def _by_text(text: str, choices: Sequence[str], forms: Sequence[Callable[[str], str]] = ()) -> int | None:
    """Return the index of the only option with this text, compared ever less strictly; None for none or several."""
    for form in forms or (*_STRICT, _option_form):
        wanted = form(text)
        hits = [index for index, choice in enumerate(choices) if wanted and form(choice) == wanted]
        if hits:
            return hits[0] if len(hits) == 1 else None
    return None


@lru_cache(_CACHED)
def _exact_form(text: str) -> str:
    return normalize_math(_bare(text)).rstrip(". ")


_STRICT = (collapse, _exact_form)


@lru_cache(_CACHED)
def _option_form(text: str) -> str:
    # Deleting punctuation would make the options 1/2 and 12 equal.
    if any(character.isdigit() for character in text):
        return _exact_form(text)
    return normalize_text(_bare(text))
