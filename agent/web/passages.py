"""Passages of pages: cleaning, sentences, the sentence that is most like a snippet, the window around it. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from treadle.agent.web.types import Language

MAX_SENTENCE_CHARS = 1_000
"""A longer sentence is cut at a blank."""
LEAST_HAN_SHARE = 0.3
"""Of the letters of a query that is taken for Chinese."""

Span = tuple[int, int]
"""Begin and end in characters."""

# What no reader sees, but a model does: controls, marks of direction and of width zero, variation selectors, tags,
# annotations and objects, halves of surrogate pairs.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    r"\U000e0000-\U000e0fff]+"
)
MAX_MARKS = 30
"""Most marks on one letter that are kept: more is no writing, and composing takes time with their square (UAX #15)."""
# All marks are among these characters: neither letters nor blanks.
_MANY_MARKS = re.compile(rf"[^\w\s\x00-\u02ff]{{{MAX_MARKS + 1},}}")
_MARKS_OF_TWO = frozenset("\u0f73\u0f75\u0f81")
"""Marks that are not said to be any, but come apart into two that are."""
_BREAK = re.compile(r"\r\n|[\r\v\f\x85\u2028\u2029]")
_BLANKS = re.compile(r"(?: (?=[^\S\n])|[^\S\n ])[^\S\n]*")
"""Blanks that are not one space: in most texts there are few."""
_BLANKS_AT_BREAK = re.compile(r" \n ?|\n ")
_EMPTY_LINES = re.compile(r"\n{3,}")

_HAN = r"\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003347f"
_HAN_LETTER = re.compile(f"[{_HAN}]")
_WORD = re.compile(rf"[{_HAN}]|[^\W{_HAN}]+")
_KANA_OR_HANGUL = re.compile(
    r"[\u3041-\u309f\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb]"
)
_END = re.compile(r"[.!?]+(?=\s)|[。！？；]+|\n")


def clean(text: str) -> str:
    """Text as a page shows it: nothing unseen, composed characters, one blank, at most one empty line.

    A letter has thirty marks at most. Breaks of any kind become newlines. Cleaning twice changes nothing.
    """
    text = _few_marks(_UNSEEN.sub("", _BREAK.sub("\n", text)))
    # Once more, as some marks come apart into several.
    text = _BLANKS.sub(" ", _few_marks(unicodedata.normalize("NFC", text)))
    return _EMPTY_LINES.sub("\n\n", _BLANKS_AT_BREAK.sub("\n", text)).strip()


def clean_line(text: str) -> str:
    """The same as one line."""
    return " ".join(clean(text).split())


def clean_beginning(text: str, num_chars: int) -> str:
    """The first characters of a text when it is clean. Cleaning costs more than reading pages: most is left out.

    Of a longer one no more than 16 times as many are looked at, however much of it is blanks.
    """
    looked_at = num_chars + num_chars // 10
    while True:
        cleaned = clean(text[:looked_at])
        if len(cleaned) >= num_chars or looked_at >= min(len(text), 16 * num_chars):
            return cleaned[:num_chars].rstrip()
        looked_at += max(2 * (num_chars - len(cleaned)), looked_at)


def _few_marks(text: str) -> str:
    """Without the marks of a letter beyond the thirtieth."""
    return text if text.isascii() else _MANY_MARKS.sub(_without_late_marks, text)


def _without_late_marks(match: re.Match[str]) -> str:
    marks = {char for char in set(match[0]) if unicodedata.combining(char) or char in _MARKS_OF_TWO}
    if not marks:
        return match[0]
    kept: list[str] = []
    num = 0
    for char in match[0]:
        num = num + 1 if char in marks else 0
        if num <= MAX_MARKS:
            kept.append(char)
    return "".join(kept)


def language_of(query: str) -> Language:
    """`zh` where at least 30 % of the letters are Han and none is kana or hangul, else `en`."""
    num_letters = sum(char.isalpha() for char in query)
    num_han = len(_HAN_LETTER.findall(query))
    if num_han == 0 or num_han < LEAST_HAN_SHARE * num_letters or _KANA_OR_HANGUL.search(query):
        return "en"
    return "zh"


def sentences(text: str) -> Iterator[Span]:
    """Where the sentences of a text are, without blanks around them, in order.

    One ends with `.`, `!` or `?` before a blank, with `。！？；`, at the end of a line, or after 1,000 characters.
    """
    begin = 0
    for match in _END.finditer(text):
        yield from _pieces(text, begin, match.end())
        begin = match.end()
    yield from _pieces(text, begin, len(text))


def _pieces(text: str, begin: int, end: int) -> Iterator[Span]:
    """A sentence, cut at blanks where it is too long."""
    while True:
        while begin < end and text[begin].isspace():
            begin += 1
        while end > begin and text[end - 1].isspace():
            end -= 1
        if end - begin <= MAX_SENTENCE_CHARS:
            break
        blank = text.rfind(" ", begin, begin + MAX_SENTENCE_CHARS + 1)
        cut = blank if blank > begin else begin + MAX_SENTENCE_CHARS
        yield begin, cut
        begin = cut
    if begin < end:
        yield begin, end


def words_of(text: str) -> frozenset[str]:
    """The words of a text in folded case; each Han character is one."""
    return frozenset(_WORD.findall(text.casefold()))


def overlap(left: frozenset[str], right: frozenset[str]) -> float:
    """F1 of two sets of words: twice those in both, by the sum of their sizes; 0 of two empty ones."""
    total = len(left) + len(right)
    return 2 * len(left & right) / total if total else 0.0


def best_sentence(text: str, snippet: str, least: float) -> Span | None:
    """The first of the sentences that are most like a snippet; None where none has an F1 above `least`."""
    wanted = words_of(snippet)
    best, best_score = None, least
    for begin, end in sentences(text):
        score = overlap(words_of(text[begin:end]), wanted)
        if score > best_score:
            best, best_score = (begin, end), score
    return best


def window(text: str, snippet: str, *, num_chars: int, least: float) -> str:
    """What stands around the best sentence, `num_chars` on either side; without one, the first `2 * num_chars`.

    Source: arXiv 2601.06860, reading of pages.
    """
    span = best_sentence(text, snippet, least)
    if span is None:
        return text[: 2 * num_chars]
    return text[max(0, span[0] - num_chars) : span[1] + num_chars]


def first_words(text: str, num_words: int) -> str:
    """A text up to its `num_words`-th word; words are what blanks separate."""
    end = 0
    for _, match in zip(range(num_words), re.finditer(r"\S+", text), strict=False):
        end = match.end()
    return text[:end]
