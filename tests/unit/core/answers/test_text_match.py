"""Exact match, containment and token F1."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treadle.core.answers.legacy import legacy_match_math, legacy_match_text, legacy_words
from treadle.core.answers.rules import score_answer
from treadle.core.answers.text_match import characters, match_text, normalize_text, token_f1, words

# Letters and accents that compose, ligatures, widths, quotes, what cannot be seen, scripts without spaces.
SIGNS = list(
    "aeThnxA '-.,\u0301\u0308\u00b4\u2019\u2014\uff0c\u3002\u3001\u1100\u1161\u0345\u03b1\u0390\u1fb3\u00df\u0130\ufb01"
    "\u00bd\u2074\u5317\u4eac\u0e33\u0e49\u00ad\u200b\ufe0f\u3099\u304b\u309b\uff21\n"
)
# NFKC makes plain digits of them, next to which they would be other numbers.
NUMBER_SIGNS = re.compile(
    "[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2089\u2150-\u215f\u2189\u2460-\u249b\u24ea-\u24ff\u2776-\u2793"
    "\u3251-\u325f\u32b1-\u32bf\U0001f100-\U0001f10a]"
)
TEXTS = st.text(max_size=12) | st.text(st.sampled_from(SIGNS), max_size=12)
WORDS = st.lists(st.sampled_from(["a", "the", "cat", "dog", "Paris", "x.", "12"]), max_size=8)


@pytest.mark.covers("evaluation-2")
@pytest.mark.parametrize(
    ("prediction", "references", "em", "acc", "f1"),
    [
        ("The Eiffel Tower", ["eiffel tower"], 1, 1, 1.0),
        ("the city of New York", ["New York City", "NYC"], 0, 0, 0.8571),
        ("Barack Hussein Obama", ["Barack Obama", "Obama"], 0, 1, 0.8),
        ("cat cat dog", ["cat dog dog"], 0, 0, 0.6667),
        ("Paris.", ["Paris"], 1, 1, 1.0),
        ("yes it is", ["yes"], 0, 1, 0.0),
        ("112", ["12"], 0, 0, 0.0),
        ("anything", ["The"], 0, 0, 0.0),
        ("true", ["True"], 1, 1, 1.0),
    ],
)
def test_worked_examples(prediction: str, references: list[str], em: float, acc: float, f1: float) -> None:
    match = match_text(prediction, references)
    assert (match.em, match.acc, round(match.f1, 4)) == (em, acc, f1)


@pytest.mark.covers("evaluation-2")
@pytest.mark.parametrize(
    ("prediction", "references", "em", "acc", "f1"),
    [
        ("The Eiffel Tower", ["eiffel tower"], 1, 1, 1.0),
        ("the city of New York", ["New York City", "NYC"], 0, 0, 0.8571),
        ("Barack Hussein Obama", ["Barack Obama", "Obama"], 0, 1, 0.8),
        ("cat cat dog", ["cat dog dog"], 0, 0, 0.6667),
        ("Paris.", ["Paris"], 0, 1, 0.0),
        ("yes it is", ["yes"], 0, 1, 0.5),
        ("112", ["12"], 0, 1, 0.0),
        ("anything", ["The"], 0, 1, 0.0),
        ("true", ["True"], 1, 1, 1.0),
        ("A", ["A"], 1, 1, 0.0),
        ("B", ["A"], 0, 1, 0.0),
    ],
)
def test_published_metrics_are_reproduced(
    prediction: str, references: list[str], em: float, acc: float, f1: float
) -> None:
    match = legacy_match_text(prediction, references)
    assert (match.em, match.acc, round(match.f1, 4)) == (em, acc, f1)


@pytest.mark.covers("evaluation-3")
def test_best_of_several_references_is_used() -> None:
    match = match_text("Obama", ["Barack Obama", "Obama"])
    assert (match.em, match.f1) == (1.0, 1.0)


@pytest.mark.covers("flywheel-20")
def test_right_answer_needs_more_than_the_threshold() -> None:
    near = score_answer("red green blue black white", ["red green blue black"])
    assert near.parts["f1"] == pytest.approx(8 / 9)
    assert near.correct is True
    exact = score_answer("Barack Hussein Obama", ["Barack Obama"])
    assert (exact.parts["f1"], exact.correct, exact.scorer) == (0.8, False, "qa_f1")
    assert score_answer("Barack Hussein Obama", ["Barack Obama"], f1_threshold=0.79).correct is True


def test_answers_of_only_articles_or_punctuation_are_not_erased() -> None:
    assert match_text("the", ["The"]).em == 1.0
    assert match_text("a", ["The"]).f1 == 0.0
    assert match_text("!!!", ["The"]).f1 == 0.0
    assert match_text("???", ["!!!"]).em == 0.0


def test_yes_and_no_get_no_partial_credit() -> None:
    assert score_answer("no, yes", ["yes"]).score == 0.0
    assert score_answer("Yes.", ["yes"]).correct is True


@pytest.mark.parametrize("prediction", ["", "  \n"])
@pytest.mark.parametrize("domain", ["qa", "math", "choice"])
def test_empty_prediction_scores_nothing(prediction: str, domain: str) -> None:
    score = score_answer(prediction, [prediction or "x"], domain=domain)
    assert (score.parts, score.score, score.correct) == ({"em": 0, "acc": 0, "f1": 0}, 0, False)


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_bounded(left: list[str], right: list[str]) -> None:
    assert token_f1(left, right) == token_f1(right, left)
    assert 0.0 <= token_f1(left, right) <= 1.0
    assert (token_f1(left, right) == 1.0) == (sorted(left) == sorted(right))


@given(WORDS.map(" ".join), WORDS.map(" ".join))
def test_exact_match_implies_full_marks(left: str, right: str) -> None:
    match = match_text(left, [right])
    assert 0.0 <= match.f1 <= 1.0
    if match.em:
        assert match.f1 == 1.0


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("O\u2019Neill", "O'Neill"),
        ("O\u00b4Neill", "O'Neill"),
        ("Hawai\u02bbi", "Hawai'i"),
        ("Qur\u02bean", "Qur'an"),
        ("\u201cParis\u201d", '"Paris"'),
        ("\u00abParis\u00bb", "Paris"),
        ("\u201eParis\u201c", "Paris"),
        ("1939\u20131945", "1939-1945"),
        ("1939\u20141945", "1939-1945"),
        ("Jean\u2010Luc", "Jean-Luc"),
        ("Jean\u2011Luc", "Jean-Luc"),
        ("\u22125", "-5"),
        ("10\u2026", "10..."),
        ("\uff30\uff41\uff52\uff49\uff53\uff01", "Paris!"),
        ("\uff11\uff10\u3000\uff05", "10 %"),
        ("\u5317\u4eac\u3002", "\u5317\u4eac"),
        ("\u300a\u4e09\u4f53\u300b", "\u4e09\u4f53"),
        ("\u300c\u6771\u4eac\u300d", "\u6771\u4eac"),
        ("\u4e54\u6cbb\u00b7\u534e\u76db\u987f", "\u4e54\u6cbb\u534e\u76db\u987f"),
        ("\u6771\u4eac\u3001\u5927\u962a", "\u6771\u4eac\uff0c\u5927\u962a"),
        ("co\u00adoperate", "cooperate"),
        ("Paris\u200b", "Paris"),
        ("\ufb01sh", "fish"),
        ("STRASSE", "stra\u00dfe"),
        ("\u00bd", "1/2"),
    ],
)
def test_typography_makes_no_difference(left: str, right: str) -> None:
    assert match_text(left, [right]) == match_text(right, [left])
    assert (match_text(left, [right]).em, match_text(left, [right]).acc, match_text(left, [right]).f1) == (1, 1, 1.0)
    inside = match_text(f"it is {left} then", [right])
    assert (inside.em, inside.acc) == (0, 1)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("\u00bd", "12", False), ("1/2", "12", False), ("\u00bd", "1\u20442", True), ("2\u00bd", "2 1/2", True),
        ("2\u00bd", "21/2", False), ("2\u00bd", "212", False), ("10\u00b2", "102", False), ("10\u00b2", "10^2", True),
        ("10^2", "102", False), ("10\u207b\u00b2", "10^-2", True), ("10\u207b\u00b2", "10\u00b2", False),
        ("10\u2082", "102", False), ("5\u2460", "51", False), ("\u2460", "1", True), ("H\u2082O", "H2O", True),
        ("5 km\u00b2", "5 km2", True), ("10\u00b9\u2070", "10^10", True), ("3 x 10\u2078", "3 x 108", False),
        # By SQuAD's rule.
        ("5.5", "55", True), ("9/11/2001", "9-11-2001", True), ("1,000", "1000", True), ("24/7", "24/7.", True),
    ],
)  # fmt: skip
def test_fractions_and_powers_are_not_whole_numbers(one: str, other: str, equal: bool) -> None:
    for left, right in ((one, other), (other, one)):
        match = match_text(left, [right])
        assert (match.em == 1.0) is equal and (match.f1 == 1.0) is equal
        assert (match_text(f"it is {left} then", [right]).acc == 1.0) is equal or right in left


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("2007/08", "2007\u201308", True), ("2007/08", "2007-08", True), ("9/11", "9-11", True),
        ("9/11 attacks", "911 attacks", True), ("24/7", "24-7", True), ("7/8 November", "7\u20138 November", True),
        ("50/50", "50-50", True), ("Boeing 747/400", "Boeing 747-400", True),
        ("the 2007/08 season", "2007\u201308 season", True), ("12/25", "12-25", True), ("1914/15", "1914-15", True),
        ("Type 2/3", "Type 2-3", True), ("3/4 time", "3-4 time", True), ("AC/DC", "ACDC", True),
        ("4/4", "4-4", True), ("\u00be time", "3/4 time", True), ("\u2153 of voters", "1/3 of voters", True),
        ("1\u00bd hours", "1 1/2 hours", True), ("F/A-18", "FA 18", False), ("1999/2000", "1999-2000", True),
        ("2020/21 Ligue 1", "2020\u201321 Ligue 1", True), ("911", "9/11", True), ("(1/2)", "\u00bd", True),
        ("1/2", "12", False), ("\u00be", "34", False), ("3/4 of it", "34 of it", False), ("1/3", "1/2", False),
        ("7/8", "78", False), ("\u00bd", "21", False), ("2 1/2", "21/2", False), ("1/10", "110", False),
        ("2007/08", "2007/09", False), ("24/7", "24/8", False), ("7\u20138 November", "78 November", False),
        ("1-2-3", "123", True), ("1/2/2003", "1-2-2003", True), ("555-1234", "5551234", True),
    ],
)  # fmt: skip
def test_seasons_dates_and_names_with_a_slash_are_not_fractions(one: str, other: str, equal: bool) -> None:
    assert (match_text(one, [other]).em, match_text(other, [one]).em) == (equal, equal)
    assert match_text(f"it is {one}", [other]).acc == equal


def test_meaningful_marks_are_kept() -> None:
    """Accents, signs of money and the long sign of Japanese are no punctuation."""
    for left, right in (("resum\u00e9", "resume"), ("\u20ac5", "5"), ("\u30d3\u30fc\u30eb", "\u30d3\u30eb")):
        assert match_text(left, [right]).em == 0.0


@given(TEXTS)
@example(" \u0300:")
@example("\u1100-\u1161")
def test_normalisation_is_idempotent_and_ignores_unicode_form(text: str) -> None:
    normal = normalize_text(text)
    assert normalize_text(normal) == normal
    for form in ("NFC", "NFD") if NUMBER_SIGNS.search(text) else ("NFC", "NFD", "NFKC", "NFKD"):
        assert normalize_text(unicodedata.normalize(form, text)) == normal


@given(TEXTS, TEXTS, st.sampled_from(["qa", "qa_characters"]))
def test_verdicts_are_the_same_for_equivalent_texts(prediction: str, gold: str, rule: str) -> None:
    score = score_answer(prediction, [gold], domain=rule)
    for form in ("NFC", "NFD") if NUMBER_SIGNS.search(prediction) else ("NFKC", "NFKD"):
        other = score_answer(unicodedata.normalize(form, prediction), [gold], domain=rule)
        if other.scorer != "empty" and score.scorer != "empty":
            assert (other.score, other.parts) == (score.score, score.parts)


@given(TEXTS, TEXTS, st.sampled_from([words, characters]))
def test_f1_of_texts_is_symmetric_and_bounded(left: str, right: str, tokens: object) -> None:
    take = characters if tokens is characters else words
    one, other = match_text(left, [right], take), match_text(right, [left], take)
    assert (one.f1, one.em) == (other.f1, other.em) and 0.0 <= one.f1 <= 1.0
    assert match_text(left, [left], take).f1 == 1.0
    assert "".join(characters(left)) == "".join(words(left))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("\u5317\u4eac\u5927\u5b66", ["\u5317", "\u4eac", "\u5927", "\u5b66"]),
        ("1949\u5e74 10\u6708", ["1949", "\u5e74", "10", "\u6708"]),
        ("Apple\u516c\u53f8", ["apple", "\u516c", "\u53f8"]),
        ("\u30ab\u3099\u30e9\u30b9", ["\u30ac", "\u30e9", "\u30b9"]),
        ("\u3072\u3089\u304c\u306a", ["\u3072", "\u3089", "\u304c", "\u306a"]),
        ("\uc11c\uc6b8\uc740", ["\uc11c", "\uc6b8", "\uc740"]),
        ("\u0e01\u0e35\u0e48", ["\u0e01\u0e35\u0e48"]),
        ("\u0e44\u0e17\u0e22", ["\u0e44", "\u0e17", "\u0e22"]),
        ("The Eiffel-Tower, 12", ["eiffeltower", "12"]),
        ("\u041c\u043e\u0441\u043a\u0432\u0430", ["\u043c\u043e\u0441\u043a\u0432\u0430"]),
    ],
)
def test_characters_of_scripts_without_spaces_are_tokens(text: str, tokens: list[str]) -> None:
    assert characters(text) == tokens


@pytest.mark.parametrize(
    ("prediction", "gold", "em", "acc", "f1"),
    [
        ("\u5317\u4eac\u5927\u5b66", "\u5317\u4eac\u5927\u5b66\u3002", 1, 1, 1.0),
        # 3 common characters of 3 predicted and 4 gold ones.
        ("\u4e94\u7ea7\u98ce", "\u4e94\u7ea7\u5927\u98ce", 0, 0, 6 / 7),
        ("\u662f\u5317\u4eac\u5927\u5b66", "\u5317\u4eac\u5927\u5b66", 0, 1, 8 / 9),
        ("1949 \u5e74", "1949\u5e74", 1, 1, 1.0),
        ("\u4e0a\u6d77", "\u5317\u4eac", 0, 0, 0.0),
        # Words of other scripts count as one: 2 common of 3 and 2.
        ("the city Paris, France", "Paris, France", 0, 1, 4 / 5),
    ],
)
def test_character_f1_is_a_separate_rule(prediction: str, gold: str, em: float, acc: float, f1: float) -> None:
    score = score_answer(prediction, [gold], domain="qa_characters")
    assert score.parts == {"em": em, "acc": acc, "f1": pytest.approx(f1)}
    assert score.correct is (f1 > 0.8)


def test_f1_of_other_scripts_matches_character_f1() -> None:
    for prediction, gold in (
        ("the city of New York", "New York City"),
        ("Yes.", "yes"),
        ("A", "A"),
        ("no, yes", "yes"),
    ):
        assert score_answer(prediction, [gold], domain="qa_characters") == score_answer(prediction, [gold])


def test_published_f1_treats_yes_and_no_of_math_as_ordinary_words() -> None:
    assert legacy_match_math("yes it is", "yes").f1 == 0.5
    assert legacy_match_math("", "").f1 == 0.0
    assert legacy_words("  The Cat,  a dog ") == "cat, dog"
