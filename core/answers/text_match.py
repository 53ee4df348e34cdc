"""Compare a prediction with gold answers by words: exact match, containment, token F1.

Follows the SQuAD conventions (Rajpurkar et al. 2016) with five corrections: punctuation is that of Unicode, fractions
and powers are no whole numbers, containment respects token boundaries, yes/no answers get no partial credit, and an
answer that consists only of articles or punctuation is not erased.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Tokens = Callable[[str], list[str]]
"""Function that splits an answer into tokens."""

_ARTICLES = frozenset({"a", "an", "the"})
_YES_NO = frozenset({"yes", "no"})

_TYPEWRITTEN = {
    "'": "\u2018\u2019\u201a\u201b\u2032\u2035\u2039\u203a\u02b9\u02bb\u02bc\u02bd\u02be\u02bf\u02c8\u02ca\u02cb",
    '"': "\u201c\u201d\u201e\u201f\u2033\u2036\u00ab\u00bb\u02ba\u301d\u301e\u301f\u300c\u300d\u300e\u300f"
    "\u3008\u3009\u300a\u300b",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2e3a\u2e3b",
    "~": "\u301c\u223c",
    "/": "\u2044\u2215",
    ",": "\u3001",
    ".": "\u3002",
    "[": "\u3010\u3014\u3016\u3018\u301a",
    "]": "\u3011\u3015\u3017\u3019\u301b",
}
"""Keyboard character -> typographic characters that are used in its place. Full-width forms are handled by NFKC."""
_TYPOGRAPHY = str.maketrans({sign: plain for plain, signs in _TYPEWRITTEN.items() for sign in signs})

_RAISED = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-", "\u207a")
_POWER = re.compile("(?:(?<=\\d)|(?<=\\d\\)))[\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
# Fractions and circled digits, which NFKC writes as plain digits.
_NUMBER_SIGN = (
    "\u00bc-\u00be\u2150-\u215f\u2189\u2460-\u249b\u24ea-\u24ff\u2776-\u2793\u3251-\u325f\u32b1-\u32bf"
    "\U0001f100-\U0001f10a"
)
_SIGN_AT_DIGIT = re.compile(
    f"(?<=[\\d{_NUMBER_SIGN}])(?=[{_NUMBER_SIGN}\u2080-\u2089])"
    f"|(?<=[{_NUMBER_SIGN}\u2080-\u2089\u2070\u00b9\u00b2\u00b3\u2074-\u2079])(?=\\d)"
)
# Proper fractions of at most tenths, for most of which there is a sign; other slashes occur in dates and names.
_FRACTION = re.compile(r"(?<![\d/])([1-9])(?:/|(?<!-\d)-)([2-9]|10)(?![\d/]|-\d)")
_CARET = re.compile(r"(?<=\d)\)?\^[({]?(-?)(?=\d)")
_SLASH_KEPT, _CARET_KEPT, _CARET_MINUS_KEPT = "\u29f8", "\u2191", "\u2193"
"""Signs in place of the slash of a fraction and the caret of a power, which are not deleted with the punctuation."""

# NFKC writes a lone accent, such as one typed as an apostrophe, as a space and a combining mark.
_LONE_ACCENT = re.compile(r"(?:^|\s)[\u0300-\u036f\u3099\u309a]+")

_WITHOUT_SPACES = re.compile(
    "[\u0e01-\u0eff\u0f00-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3021-\u3029\u3041-\u3096\u309d-\u309f"
    "\u30a1-\u30ff\u3105-\u312f\u3131-\u318e\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
"""Scripts that do not separate words by spaces: Han, kana, bopomofo, Thai, Lao, Tibetan, Burmese, Khmer; and Hangul,
whose words carry particles."""


class _Deleted(dict[int, int | None]):
    """Table for `str.translate` that deletes punctuation and invisible characters; filled as characters occur."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        category = unicodedata.category(character)
        is_selector = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
        deleted = category[0] == "P" or category == "Cf" or is_selector or character in string.punctuation
        self[code] = None if deleted else code
        return self[code]


_DELETED = _Deleted()


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Exact match, containment (each 0 or 1) and token F1."""

    em: float
    acc: float
    f1: float


def plain_typography(text: str) -> str:
    """Return the text with keyboard quotes, dashes, brackets and widths (NFKC); letter case is kept.

    A number and a raised digit, lowered digit or fraction behind it stay apart: `10^2`, `10 2`, `2 1/2`.
    """
    if text.isascii():
        return text
    text = _SIGN_AT_DIGIT.sub(" ", text)
    text = _POWER.sub(lambda match: "^" + match[0].translate(_RAISED), text)
    return unicodedata.normalize("NFKC", text).translate(_TYPOGRAPHY)


def normalize_text(text: str) -> str:
    """Fold case and typography (NFKC), delete punctuation and articles, collapse white space.

    If nothing would be left, articles are kept, and if necessary punctuation too. Otherwise the gold answers `The` and
    `A` would equal the empty string and each other.
    """
    folded = plain_typography(plain_typography(text).casefold())
    bare = _keep_parts_of_numbers(folded).translate(_DELETED)
    if not bare.isascii():
        # Deleting characters may join a letter and its accent.
        bare = unicodedata.normalize("NFKC", _LONE_ACCENT.sub("", unicodedata.normalize("NFKC", bare)))
    words = [word for word in bare.split() if word not in _ARTICLES]
    return " ".join(words) or collapse(bare) or collapse(folded)


def _keep_parts_of_numbers(text: str) -> str:
    """Return the text with signs that are not deleted in fractions and powers: `1/2` is not `12`, `10^2` not `102`.

    A hyphen in a fraction's place is a slash, because `7/8 November` is `7-8 November`. Seasons, dates and names with
    other numbers (`2007/08`, `9/11`, `747/400`) lose slash and hyphen like any punctuation.
    """
    text = _FRACTION.sub(_fraction, text)
    return _CARET.sub(lambda match: _CARET_MINUS_KEPT if match[1] else _CARET_KEPT, text)


def _fraction(match: re.Match[str]) -> str:
    return f"{match[1]}{_SLASH_KEPT}{match[2]}" if int(match[1]) < int(match[2]) else match[0]


def words(text: str) -> list[str]:
    """Return the words of a normalised answer."""
    return normalize_text(text).split()


def characters(text: str) -> list[str]:
    """Return the words of a normalised answer, split into characters in scripts that are written without spaces.

    Combining marks stay with their letter. Words and numbers of other scripts stay whole.
    """
    tokens: list[str] = []
    for word in words(text):
        is_open = False
        for character in word:
            is_single = _WITHOUT_SPACES.match(character) is not None
            is_mark = unicodedata.category(character)[0] == "M"
            if tokens and (is_mark or (is_open and not is_single)):
                tokens[-1] += character
            else:
                tokens.append(character)
            is_open = is_open if is_mark else not is_single
    return tokens


def normalize_math(text: str) -> str:
    """Lower-case a text and collapse its white space; delete nothing."""
    return collapse(text.lower())


def math_words(text: str) -> list[str]:
    """Return the words of an answer to a mathematical question."""
    return normalize_math(text).split()


def collapse(text: str) -> str:
    """Return a text with each run of white space replaced by one space, and none around it."""
    return " ".join(text.split())


def match_text(prediction: str, references: Iterable[str], tokens: Tokens = words) -> TextMatch:
    """Compare the prediction with each reference; return the best value of each metric over all references."""
    predicted = tokens(prediction)
    matches = [_match_tokens(predicted, tokens(reference)) for reference in references]
    return TextMatch(
        max((match.em for match in matches), default=0.0),
        max((match.acc for match in matches), default=0.0),
        max((match.f1 for match in matches), default=0.0),
    )


def _match_tokens(predicted: list[str], wanted: list[str]) -> TextMatch:
    prediction, reference = " ".join(predicted), " ".join(wanted)
    em = float(prediction == reference)
    acc = float(bool(reference) and f" {reference} " in f" {prediction} ")
    if prediction in _YES_NO or reference in _YES_NO:
        return TextMatch(em, acc, em)
    return TextMatch(em, acc, token_f1(predicted, wanted))


def token_f1(prediction: list[str], reference: list[str]) -> float:
    """Return the F1 of two token multisets; 1 if both are empty."""
    if not prediction and not reference:
        return 1.0
    common = sum((Counter(prediction) & Counter(reference)).values())
    return 2 * common / (len(prediction) + len(reference))
