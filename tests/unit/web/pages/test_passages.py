"""Passages of pages: what is kept of their text, which sentence is most like a snippet, and the window around it."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.web.pages import passages
from treadle.web.pages.passages import (
    MAX_MARKS,
    MAX_SENTENCE_CHARS,
    best_sentence,
    clean,
    clean_beginning,
    clean_line,
    first_words,
    language_of,
    overlap,
    sentences,
    window,
    words_of,
)

_SNIPPET = "The tower is 330 metres tall"
_TEXTS = st.text(alphabet="ab c.!?\n。；塔高é\u0301\u200b\u202e\r\t\x00|<>", max_size=300)
_ANY = st.text(max_size=300)


def _sentences(text: str) -> list[str]:
    return [text[begin:end] for begin, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n ", []),
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Version 2.0 is out. Yes", ["Version 2.0 is out.", "Yes"]),
        ("Wait... what?! No", ["Wait...", "what?!", "No"]),
        ("A line\nanother line", ["A line", "another line"]),
        ("塔高330米。建于1889年！是吗？是；好", ["塔高330米。", "建于1889年！", "是吗？", "是；", "好"]),
    ],
)
def test_sentences_end_at_marks_before_blanks_at_chinese_marks_and_at_line_breaks(
    text: str, expected: list[str]
) -> None:
    assert _sentences(text) == expected


def test_long_sentence_is_split_at_blanks_or_at_its_limit() -> None:
    words = ("word " * 500).strip()
    assert all(piece.split() == ["word"] * len(piece.split()) for piece in _sentences(words))
    assert " ".join(_sentences(words)) == words
    assert [len(piece) for piece in _sentences("x" * 2_500)] == [1_000, 1_000, 500]


@given(_TEXTS | _ANY)
def test_sentences_are_bounded_ordered_and_omit_only_blanks(text: str) -> None:
    end = 0
    for span in sentences(text):
        assert not text[end : span[0]].strip()
        assert span[0] < span[1] <= span[0] + MAX_SENTENCE_CHARS
        assert text[span[0] : span[1]].strip() == text[span[0] : span[1]]
        end = span[1]
    assert not text[end:].strip()


def test_words_are_a_casefolded_set_and_each_chinese_character_is_one() -> None:
    assert words_of("The THE the, Straße!") == {"the", "strasse"}
    assert words_of("铁塔高330米") == {"铁", "塔", "高", "330", "米"}


def test_sentence_similar_to_its_snippet_reproduces_the_worked_example() -> None:
    sentence = "It is 330 metres tall ."
    assert len(words_of(_SNIPPET)) == 6
    assert len(words_of(sentence)) == 5
    assert overlap(words_of(sentence), words_of(_SNIPPET)) == 8 / 11
    text = f"Paris has many sights. {sentence} It was built in 1889."
    span = best_sentence(text, _SNIPPET, 0.2)
    assert span is not None
    assert text[span[0] : span[1]] == sentence


def test_sentence_at_the_overlap_threshold_is_not_similar_enough() -> None:
    sentence, snippet = "tall are all houses", "the tower is 330 metres tall"
    assert overlap(words_of(sentence), words_of(snippet)) == 0.2
    assert best_sentence(sentence, snippet, 0.2) is None
    assert best_sentence(sentence, snippet, 0.19) == (0, len(sentence))


def test_first_of_equally_similar_sentences_wins() -> None:
    assert best_sentence("The tower stands. The tower stands.", "the tower stands", 0.2) == (0, 17)


@given(_TEXTS, _TEXTS, st.sampled_from([0.0, 0.2, 0.5]))
def test_best_sentence_matches_direct_counting(text: str, snippet: str, least: float) -> None:
    wanted = words_of(snippet)
    scores = []
    for begin, end in sentences(text):
        have = words_of(text[begin:end])
        both = sum(word in wanted for word in have)
        scores.append(2 * both / (len(have) + len(wanted)) if have or wanted else 0.0)
    best = max(scores, default=0.0)
    span = best_sentence(text, snippet, least)
    if best <= least:
        assert span is None
    else:
        assert span == list(sentences(text))[scores.index(best)]


@pytest.mark.parametrize(
    ("begin", "length", "expected"),
    [(10_000, 100, (7_000, 13_100)), (1_000, 50, (0, 4_050)), (19_950, 50, (16_950, 20_000))],
)
def test_worked_windows_of_3000_characters(begin: int, length: int, expected: tuple[int, int]) -> None:
    sentence = f"{_SNIPPET} ".ljust(length, "x")
    text = ("0123456 89" * 2_000)[: begin - 1] + "\n" + sentence + "\n" + "abcdefg ij" * 2_000
    text = text[:20_000]
    assert best_sentence(text, _SNIPPET, 0.2) == (begin, begin + length)
    assert window(text, _SNIPPET, num_chars=3_000, least=0.2) == text[slice(*expected)]


@pytest.mark.parametrize(("num_chars", "expected"), [(3_000, 6_000), (1_000, 2_000)])
def test_page_without_a_similar_sentence_is_shown_from_its_start(num_chars: int, expected: int) -> None:
    text = "nothing like it " * 1_000
    assert window(text, _SNIPPET, num_chars=num_chars, least=0.2) == text[:expected]


@given(_TEXTS, _TEXTS, st.integers(1, 50))
def test_window_is_a_bounded_part_of_the_page_with_the_whole_sentence(text: str, snippet: str, num_chars: int) -> None:
    part = window(text, snippet, num_chars=num_chars, least=0.2)
    assert part in text
    assert len(part) <= 2 * num_chars + MAX_SENTENCE_CHARS
    span = best_sentence(text, snippet, 0.2)
    if span is not None:
        assert text[span[0] : span[1]] in part


@pytest.mark.parametrize(
    ("text", "expected"),
    [("one two  three\nfour five", "one two  three"), ("one", "one"), ("", ""), (" one two", " one two")],
)
def test_first_words_keep_their_separators(text: str, expected: str) -> None:
    assert first_words(text, 3) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("height of the Eiffel tower", "en"),
        ("埃菲尔铁塔的高度", "zh"),
        ("埃菲尔铁塔 Eiffel", "zh"),
        ("the meaning of 道 in Chinese philosophy", "en"),
        ("東京タワーの高さ", "en"),
        ("서울 漢江", "en"),
        ("1234567890 + 1234567890 年", "zh"),
        ("330 ?!", "en"),
        ("", "en"),
        ("abcdefg三四五", "zh"),
        ("abcdefgh三四五", "en"),
    ],
)
def test_query_is_chinese_by_its_letters(query: str, expected: str) -> None:
    assert language_of(query) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x00b\x1b[31mc\x7f", "ab[31mc"),
        ("left\u202eright\u2066x\u200b\u200d\ufeff", "leftrightx"),
        ("hidden\U000e0041\U000e0042\U000e0100 order", "hidden order"),
        ("\ufffc\ufffd\uffff\ud800", ""),
        ("e\u0301", "é"),
        ("a \t \u00a0\u3000b", "a b"),
        ("a \r\n b\rc\u2028d", "a\nb\nc\nd"),
        ("a\n\n \n\nb", "a\n\nb"),
        ("  a  ", "a"),
    ],
)
def test_cleaning_removes_invisible_characters_and_collapses_blanks(text: str, expected: str) -> None:
    assert clean(text) == expected


_MARKS = "\u0315\u0300"
_COME_APART = "\u0f73\u0f75\u0f81\u0344"


@pytest.mark.parametrize("marks", [_MARKS, *_COME_APART, _COME_APART, "\u0315\u200b\u0300", "\u0f73\u0300"])
def test_letter_keeps_at_most_thirty_combining_marks(marks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    composed = list[str]()
    normalize = unicodedata.normalize

    def noted(form: Any, text: str) -> str:
        composed.append(text)
        return normalize(form, text)

    monkeypatch.setattr(unicodedata, "normalize", noted)
    kept = clean(f"a{marks * 50_000}b")
    # What takes time with the square of the marks never sees many of them.
    assert [len(text) <= MAX_MARKS + 2 for text in composed] == [True]
    assert kept[0] in "aàä" and kept[-1] == "b" and 20 <= len(kept) <= MAX_MARKS + 2
    assert clean(kept) == kept


def test_script_marks_and_symbol_sequences_are_kept() -> None:
    zalgo = "Z" + "\u0335\u0321\u0352" * 10
    for text in (normal("בְּרֵאשִׁית"), "क्षि" * 20, zalgo, "─" * 100, "…。、" * 40, "🙂" * 50, "ཀཱི" * 40):
        assert clean(text) == normal(text)


def normal(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def test_cleaning_recognises_all_combining_marks() -> None:
    for code in (*range(0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE1000)):
        apart = unicodedata.normalize("NFD", chr(code))
        if unicodedata.combining(apart[0]):
            assert len(passages._limit_marks("x" + chr(code) * 40)) == 1 + MAX_MARKS, hex(code)


@pytest.mark.parametrize(("text", "expected"), [("a" * 99, "a" * 10), (" a" * 9, "a a a a a"), (" " * 999 + "a", "")])
def test_only_the_start_of_a_long_text_is_cleaned(text: str, expected: str) -> None:
    assert clean_beginning(text, 10) == expected
    assert clean_beginning("\u200b" * 150 + "abc", 10) == "abc"


@given(_TEXTS | _ANY)
def test_cleaning_is_idempotent_and_leaves_nothing_invisible(text: str) -> None:
    once = clean(text)
    assert clean(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert not [char for char in once if unicodedata.category(char) in ("Cc", "Cs") and char != "\n"]
    assert "\n" not in clean_line(text)
