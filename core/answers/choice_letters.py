"""Find the option letters that a sentence names as its answer.

A letter may be a word or part of a name (`A blue car`, `vitamin C`), so a letter without brackets counts only if the
words around it show that it is an option. Letters that are joined (`B or C`, `A/C`) are named together; denied ones
(`not B`, `the wrong answer is B`) are not named, and a sentence that only denies names none. Patterns see windows of
bounded size, because predictions are written by models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from treadle.core.answers.choice_phrases import (
    ANSWER_BEFORE,
    ANSWER_BEHIND,
    CLOSES,
    CONCLUDED,
    DENIED_BEFORE,
    DENIED_BEHIND,
    ENDS,
    JOINED,
    LISTED,
    OPPOSED,
    OPTION_BEFORE,
)

_WINDOW = 60
"""Characters before and after a letter that are searched."""
_MAX_MENTIONS = 200

_CANDIDATE = re.compile(r"(?<![A-Za-z0-9\\'])(?:[(\[]\s?([A-Za-z])\s?[)\]]|([A-Za-z])(?![A-Za-z0-9'+-]))")
_LABEL_IN_FRONT = re.compile(
    r"[(\[]\s?[A-Za-z]\s?[)\]]|[A-Za-z](?:\s?(?:\)|[.:,](?!\d|[A-Za-z](?![A-Za-z])))|\s[-~]\s"
    r"|\s(?:rather than|instead of|because|since)\b)"
)


@dataclass(slots=True)
class _Mention:
    letter: str
    strength: int
    """2: stated as the answer; 1: mentioned as an option, in brackets or by that name; 0: perhaps a word."""
    is_denied: bool
    is_joined: bool
    """Whether it is joined with the mention before."""


def letters_named(text: str) -> set[str]:
    """Return the letters, in upper case, that a text without markup names as its answer; several if it is undecided."""
    best, named = 1, set[str]()
    for group in _groups(_mentions(text)):
        strength = max((mention.strength for mention in group if not mention.is_denied), default=0)
        letters = {mention.letter for mention in group if not mention.is_denied}
        if letters and strength >= best:
            named = letters if strength > best else named | letters
            best = strength
    return named


def _groups(mentions: Iterator[_Mention]) -> Iterator[list[_Mention]]:
    group: list[_Mention] = []
    for mention in mentions:
        if group and not mention.is_joined:
            yield group
            group = []
        group.append(mention)
    if group:
        yield group


def _mentions(text: str) -> Iterator[_Mention]:
    label = _LABEL_IN_FRONT.match(text)
    last: _Mention | None = None
    end = 0
    for number, match in enumerate(_CANDIDATE.finditer(text)):
        if number == _MAX_MENTIONS:
            break
        letter, is_bare = (match[1] or match[2]), match[1] is None
        before, behind = text[max(end, match.start() - _WINDOW) : match.start()], text[match.end() :][:_WINDOW]
        is_word = is_bare and (letter in "AI" or letter.islower()) and not CLOSES.match(behind)
        is_label = label is not None and match.end() <= label.end()
        is_option = not is_bare or bool(OPTION_BEFORE.search(before))
        if is_word and not is_label and not (letter == "A" and is_option):
            continue
        is_listed = last is not None and bool(LISTED.fullmatch(before))
        is_denied_behind = bool(DENIED_BEHIND.match(behind))
        is_denied = is_denied_behind or bool(DENIED_BEFORE.search(before))
        if last is not None and is_listed:
            is_denied = is_denied or last.is_denied
            last.is_denied = last.is_denied or is_denied_behind
        if last is not None:
            yield last
        is_opposed = last is not None and last.is_denied and bool(OPPOSED.search(before))
        is_answer = is_label or is_opposed or _is_stated(before, behind)
        last = _Mention(
            letter.upper(),
            strength=2 if is_answer else int(is_option),
            is_denied=is_denied,
            is_joined=last is not None and (bool(JOINED.search(before)) or not before.strip()),
        )
        end = match.end()
    if last is not None:
        yield last


def _is_stated(before: str, behind: str) -> bool:
    """Return whether the words around a letter say that it is the answer."""
    if ANSWER_BEFORE.search(before) or ANSWER_BEHIND.match(behind):
        return True
    return bool(CONCLUDED.search(before) and ENDS.match(behind))
