"""Compare two questions: the similarity of their words, and whether they ask the same thing."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property

_TOKEN = re.compile(r"\d+(?:[.,:/]\d+)*|[^\W\d_]+(?:'[^\W\d_]+)*|[^\s\w,.;:?\"“”]|_")

MIN_SPELLING_LENGTH = 5
MAX_SPELLING_LENGTH = 64
"""Maximum length of a word that is compared; longer runs are sequences or texts without spaces, which are slow to
align."""
_MIN_SPELLING_RATIO = 0.8

# Words whose presence does not change the question. Negations and superlatives are not among them.
_FUNCTION_WORD_TEXT = (
    "a an and are as at be been by can could did do does for from had has have how i in is it its me of on or please "
    "s t tell that the their there these this those to was were what when where which who whom whose will with would "
    "you your question answer following find determine give state"
)
_FUNCTION_WORDS = frozenset(_FUNCTION_WORD_TEXT.split())
_NEGATION_TEXT = "not no never none neither nor without except least most fewest only isn't doesn't wasn't"
_NEGATIONS = frozenset(_NEGATION_TEXT.split())


def normalize(text: str) -> str:
    """Return the text in NFC, case folded, with each run of whitespace as one space."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def tokenize(text: str) -> list[str]:
    """Return numbers, words and symbols in their order, case kept; sentence punctuation is dropped."""
    return _TOKEN.findall(unicodedata.normalize("NFC", text).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))


def shingles(tokens: Sequence[str], size: int = 3) -> set[tuple[str, ...]]:
    """Return all runs of `size` case-folded tokens; for a shorter text, the whole text as one run."""
    folded = [token.casefold() for token in tokens]
    return {tuple(folded[start : start + size]) for start in range(max(1, len(folded) - size + 1))}


def jaccard(left: set[tuple[str, ...]], right: set[tuple[str, ...]]) -> float:
    """Return the size of the intersection divided by that of the union."""
    common = len(left & right)
    return common / (len(left) + len(right) - common)


def _is_formal(token: str) -> bool:
    return not token[0].isalpha() or (len(token) == 1 and token not in "aAiI")


class QuestionFeatures:
    """Tokens of a question, with the features that are compared."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens
        folded = [token.casefold() for token in tokens]
        self.words = [(token, fold) for token, fold in zip(tokens, folded, strict=True) if fold not in _FUNCTION_WORDS]
        """Tokens that are not function words, as pairs of the written and the case-folded form."""
        self.kinds = frozenset(fold for _, fold in self.words)
        self.signature = (
            tuple(token for token in tokens if _is_formal(token)),
            tuple(fold for _, fold in self.words if fold in _NEGATIONS),
        )
        """Numbers, symbols and single letters in their order, then negations; equal for two questions that ask the
        same."""

    @cached_property
    def grams(self) -> set[tuple[str, ...]]:
        """Runs of three tokens."""
        return shingles(self.tokens)

    def order(self, kinds: frozenset[str] | set[str]) -> list[str]:
        """Return the case-folded words that are in `kinds`, in their order."""
        return [fold for _, fold in self.words if fold in kinds]

    def only(self, common: frozenset[str]) -> list[str]:
        """Return the words, as written, that are not in `common`."""
        return [word for word, fold in self.words if fold not in common]


def is_same_question(left: QuestionFeatures, right: QuestionFeatures) -> bool:
    """Return whether two questions differ only by function words, additions and misspellings."""
    if left.signature != right.signature:
        return False
    common = left.kinds & right.kinds
    only = [left.only(common), right.only(common)]
    if any(word[0].isupper() for side in only for word in side):
        return False
    if only[0] and only[1] and not _are_misspellings(*only):
        return False
    return left.order(common) == right.order(common)


def _are_misspellings(left: Sequence[str], right: Sequence[str]) -> bool:
    return len(left) == len(right) and all(is_misspelling(a, b) for a, b in zip(left, right, strict=True))


def may_be_misspelled(word: str) -> bool:
    """Return whether another spelling of the word may count as the same word."""
    return MIN_SPELLING_LENGTH <= len(word) <= MAX_SPELLING_LENGTH and not word[0].isupper()


def fewest_shared_letters(left_length: int, right_length: int) -> int:
    """Return the minimum number of letters, in order, that two spellings of these lengths share."""
    return -(-round(10 * _MIN_SPELLING_RATIO) * (left_length + right_length) // 20)


def is_misspelling(left: str, right: str) -> bool:
    """Return whether one word is a likely misspelling of the other."""
    lengths = len(left), len(right)
    if min(lengths) < max(MIN_SPELLING_LENGTH, fewest_shared_letters(*lengths)) or max(lengths) > MAX_SPELLING_LENGTH:
        return False
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    return matcher.quick_ratio() >= _MIN_SPELLING_RATIO and matcher.ratio() >= _MIN_SPELLING_RATIO
