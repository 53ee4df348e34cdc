"""Duplicates and contamination: what counts as the same question, and above all what does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.datagen.contamination import BenchmarkIndex
from treadle.datagen.duplicates import DuplicateIndex, asks_the_same, identity, jaccard, shingles, tokenize

STORY = (
    "A keeper of the old tower at the end of the harbour writes down every boat that passes. On the first day he "
    "counts 14 boats before noon and 9 boats after it, and on the second day twice as many as on both halves of the "
    "first day together. How many boats does the keeper write down on both days, if he never misses one?"
)


def second(first: str, other: str, answers: tuple[str, str] = ("69", "69"), threshold: float = 0.9) -> str | None:
    """Kind of duplicate that `other` is after `first`."""
    index = DuplicateIndex(threshold)
    assert index.add("a", first, [answers[0]]) is None
    found = index.add("b", other, [answers[1]])
    return found.kind if found else None


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("Who  built\nit?", "who built it?"),
        ("Caf\u00e9?", "Cafe\u0301?"),
        ("STRASSE", "stra\u00dfe"),
    ],
)
def test_case_white_space_and_unicode_form_do_not_make_another_question(first: str, other: str) -> None:
    assert second(first, other) == "exact_duplicate"


@pytest.mark.parametrize(
    "other",
    [
        "Please answer: " + STORY,
        STORY.replace("harbour", "harbuor"),
        STORY.replace(", and", " and").replace("?", ""),
        STORY.replace("every boat", "every single boat"),
    ],
)
def test_added_words_misspellings_and_punctuation_are_near_duplicates(other: str) -> None:
    assert second(STORY, other) == "near_duplicate"


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (STORY, STORY.replace("14", "15")),
        (STORY, STORY.replace("14", "9").replace("9 boats after", "14 boats after")),
        (STORY, STORY.replace("keeper", "sailor")),
        (STORY, STORY.replace("first", "second")),
        (STORY, STORY.replace("never misses", "misses")),
        (STORY, STORY.replace("at the end", "of Vorna at the end")),
        ("In which town was Mimzardo born?", "In which town was Mimzardi born?"),
        ("Is Arn north of Vorna?", "Is Vorna north of Arn?"),
        ("What is $x+1$ for $x=2$?", "What is $x-1$ for $x=2$?"),
        ("Find f'(2) for f(x)=x^2.", "Find f(2) for f(x)=x^2."),
    ],
)
def test_other_numbers_names_orders_and_signs_make_another_question(first: str, other: str) -> None:
    assert second(first, other, threshold=0.6) is None


def test_near_questions_with_different_answers_are_both_kept() -> None:
    assert second(STORY, "Please answer: " + STORY, answers=("69", "70")) is None


def test_equal_questions_with_other_options_are_different() -> None:
    index = DuplicateIndex()
    assert index.add("a", "Which is true?", ["A"], ["x", "y"]) is None
    assert index.add("b", "Which is true?", ["A"], ["x", "z"]) is None
    assert index.add("c", "Which is true?", ["B"], ["X", "y "]) is not None


def test_the_first_of_several_duplicates_is_named_and_conflicting_answers_are_told() -> None:
    index = DuplicateIndex()
    index.add("a", "Why?", ["x"])
    found = index.add("b", "why?", ["y"])
    assert found is not None
    assert (found.key, found.same_answers) == ("a", False)
    again = index.add("c", "Why?", ["X"])
    assert again is not None
    assert (again.key, again.same_answers) == ("a", True)


def test_questions_of_one_template_all_survive() -> None:
    index = DuplicateIndex()
    names = [first + second for first in ("Vor", "Tes", "Mim", "Kaz", "Bel") for second in ("na", "ko", "dru", "lis")]
    templates = [
        "In which town was {} born?",
        "By how many metres do the depths of Lake {} and Lake Ilme differ, if both are measured at the same time?",
        "The map of the northern counties shows a road from the harbour over the hills to the house of {}. Is it "
        "true that the road, which was built by the county, is longer than the river that runs beside it?",
    ]
    kept = [index.add(f"{t}{n}", form.format(n), ["yes"]) for t, form in enumerate(templates) for n in names]
    assert kept == [None] * 60


WORDS = st.lists(st.sampled_from(["river", "hill", "boat", "3", "17", "Vorna", "+", "x", "="]), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(WORDS, WORDS)
def test_similarity_is_symmetric_and_one_only_for_equal_sets(left: list[str], right: list[str]) -> None:
    a, b = shingles(left), shingles(right)
    assert jaccard(a, b) == jaccard(b, a)
    assert (jaccard(a, b) == 1.0) == (a == b)
    assert asks_the_same(left, right) == asks_the_same(right, left)


@settings(max_examples=30, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=12))
def test_every_question_is_kept_or_repeats_one_that_is(texts: list[list[str]]) -> None:
    index = DuplicateIndex()
    kept: dict[str, str] = {}
    for number, words in enumerate(texts):
        text = " ".join(words)
        found = index.add(str(number), text, ["a"])
        if found is None:
            assert identity(text) not in kept.values()
            kept[str(number)] = identity(text)
        else:
            assert found.key in kept
            assert found.kind == "near_duplicate" or kept[found.key] == identity(text)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60))
def test_any_text_can_be_compared(text: str) -> None:
    index = DuplicateIndex()
    tokens = tokenize(text)
    assert all(token and not token.isspace() for token in tokens)
    assert index.add("a", text, ["x"]) is None
    assert index.add("b", text, ["x"]) is not None


class TestContamination:
    """A benchmark question inside a training question."""

    def find(self, benchmark: str, training: str, overlap: float = 0.5) -> str | None:
        index = BenchmarkIndex(overlap)
        index.add("bench", 4, "Something else entirely?")
        index.add("bench", 7, benchmark)
        found = index.find(training)
        assert found is None or (found.benchmark, found.row) == ("bench", 7)
        return found.how if found else None

    def test_an_equal_question_is_found_in_any_case_and_punctuation(self) -> None:
        assert self.find("Who built it?", "who built it") == "equals it"

    def test_a_short_question_is_found_inside_a_longer_one(self) -> None:
        short = "In which year was the bridge of Vorna built?"
        assert self.find(short, f"Think first. {short} Answer in one word.") == "contains it"

    def test_a_very_short_question_is_not_looked_for_inside_others(self) -> None:
        assert self.find("Who built it?", "A bridge stands in Vorna. Who built it?") is None

    def test_a_copied_half_is_found_and_a_shared_run_of_words_is_not(self) -> None:
        half = " ".join(STORY.split()[:40])
        few = " ".join(STORY.split()[:16])
        assert self.find(STORY, f"{half} and then something else happens.") is not None
        assert self.find(STORY, f"{few} and then something else happens.") is None
        assert self.find(STORY, f"{few} and then something else happens.", overlap=0.1) is not None

    def test_twelve_shared_words_are_not_a_run(self) -> None:
        twelve = " ".join(STORY.split()[:12])
        assert self.find(STORY, f"{twelve} x", overlap=0.0) is None
