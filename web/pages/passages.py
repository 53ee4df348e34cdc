"""Cut passages out of pages: clean text, split sentences, find the one most like a snippet, and cut around it. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from treadle.web.types import Language

MAX_SENTENCE_CHARS = 1_000
"""A longer sentence is split at a space."""
MIN_HAN_SHARE = 0.3
"""Least share of Han letters in a query that is taken for Chinese."""

Span = tuple[int, int]
"""Start and end in characters."""

# Characters that are invisible to people but not to a model: controls, direction marks, zero-width marks, variation
# selectors, tags, annotations and objects, surrogates.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    r"\U000e0000-\U000e0fff]+"
)
MAX_MARKS = 30
"""Most combining marks kept per letter. No script uses more, and normalising takes time quadratic in them (UAX #15)."""
# Superset of the combining marks: neither letters nor white space.
_MANY_MARKS = re.compile(rf"[^\w\s\x00-\u02ff]{{{MAX_MARKS + 1},}}")
_MARKS_OF_TWO = frozenset("\u0f73\u0f75\u0f81")
"""Marks with combining class 0 that decompose into two marks."""
_BREAK = re.compile(r"\r\n|[\r\v\f\x85\u2028\u2029]")
_WHITE_SPACE = re.compile(r"(?: (?=[^\S\n])|[^\S\n ])[^\S\n]*")
"""White space other than a single space; rare in most texts."""
_WHITE_SPACE_AT_BREAK = re.compile(r" \n ?|\n ")
_EMPTY_LINES = re.compile(r"\n{3,}")

_HAN = r"\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003347f"
_HAN_LETTER = re.compile(f"[{_HAN}]")
_WORD = re.compile(rf"[{_HAN}]|[^\W{_HAN}]+")
_KANA_OR_HANGUL = re.compile(
    r"[\u3041-\u309f\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb]"
)
_END = re.compile(r"[.!?]+(?=\s)|[。！？；]+|\n")


def clean(text: str) -> str:
    """Return text as a page displays it: no invisible characters, NFC, single spaces, at most one empty line in a row.

    A letter keeps at most thirty combining marks. Line breaks of any kind become newlines. Idempotent.
    """
    text = _limit_marks(_INVISIBLE.sub("", _BREAK.sub("\n", text)))
    # Again, since some marks decompose into several.
    text = _WHITE_SPACE.sub(" ", _limit_marks(unicodedata.normalize("NFC", text)))
    return _EMPTY_LINES.sub("\n\n", _WHITE_SPACE_AT_BREAK.sub("\n", text)).strip()


def clean_line(text: str) -> str:
    """Return text cleaned as by `clean`, on one line."""
    return " ".join(clean(text).split())


def clean_beginning(text: str, num_chars: int) -> str:
    """Return the first `num_chars` characters of the cleaned text, without cleaning all of it.

    Cleaning costs more than parsing pages. At most 16 times as many characters are examined, even if most are white
    space.
    """
    looked_at = num_chars + num_chars // 10
    while True:
        cleaned = clean(text[:looked_at])
        if len(cleaned) >= num_chars or looked_at >= min(len(text), 16 * num_chars):
            return cleaned[:num_chars].rstrip()
        looked_at += max(2 * (num_chars - len(cleaned)), looked_at)


def _limit_marks(text: str) -> str:
    """Drop the combining marks of a letter beyond the thirtieth."""
    return text if text.isascii() else _MANY_MARKS.sub(_drop_excess_marks, text)


def _drop_excess_marks(match: re.Match[str]) -> str:
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
    """Return `zh` if at least 30 % of the letters are Han and there is no kana or hangul, else `en`."""
    num_letters = sum(char.isalpha() for char in query)
    num_han = len(_HAN_LETTER.findall(query))
    if num_han == 0 or num_han < MIN_HAN_SHARE * num_letters or _KANA_OR_HANGUL.search(query):
        return "en"
    return "zh"


def sentences(text: str) -> Iterator[Span]:
    """Yield the spans of the sentences of a text, in order and without surrounding white space.

    A sentence ends with `.`, `!` or `?` before white space, with `。！？；`, at the end of a line, or after 1,000
    characters.
    """
    begin = 0
    for match in _END.finditer(text):
        yield from _pieces(text, begin, match.end())
        begin = match.end()
    yield from _pieces(text, begin, len(text))


def _pieces(text: str, begin: int, end: int) -> Iterator[Span]:
    """Yield the span of a sentence, split at spaces if it is too long."""
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
    """Return the case-folded words of a text; each Han character is a word."""
    return frozenset(_WORD.findall(text.casefold()))


def overlap(left: frozenset[str], right: frozenset[str]) -> float:
    """Return the F1 of two sets of words: twice the size of the intersection / the sum of sizes; 0 for empty sets."""
    total = len(left) + len(right)
    return 2 * len(left & right) / total if total else 0.0


def best_sentence(text: str, snippet: str, least: float) -> Span | None:
    """Return the first of the sentences most like a snippet; None if none has a word F1 above `least`."""
    wanted = words_of(snippet)
    best, best_score = None, least
    for begin, end in sentences(text):
        score = overlap(words_of(text[begin:end]), wanted)
        if score > best_score:
            best, best_score = (begin, end), score
    return best


def window(text: str, snippet: str, *, num_chars: int, least: float) -> str:
    """Return the text around the best sentence, `num_chars` on either side; without one, the first `2 * num_chars`.

    Source: arXiv 2601.06860, reading of pages.
    """
    span = best_sentence(text, snippet, least)
    if span is None:
        return text[: 2 * num_chars]
    return text[max(0, span[0] - num_chars) : span[1] + num_chars]


def first_words(text: str, num_words: int) -> str:
    """Return a text up to its `num_words`-th word; words are separated by white space."""
    end = 0
    for _, match in zip(range(num_words), re.finditer(r"\S+", text), strict=False):
        end = match.end()
    return text[:end]
