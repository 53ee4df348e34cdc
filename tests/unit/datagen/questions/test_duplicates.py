"""Duplicates and contamination: what counts as the same question, and above all what does not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plain_duplicates import PlainBenchmarks, PlainIndex
from support.sweep import examples

from treadle.datagen.questions import contamination, duplicates, spellings, word_index
from treadle.datagen.questions.contamination import RUN_TOKENS, BenchmarkIndex
from treadle.datagen.questions.duplicates import DuplicateIndex, identity
from treadle.datagen.questions.question_similarity import (
    QuestionFeatures,
    is_misspelling,
    is_same_question,
    jaccard,
    shingles,
    tokenize,
)

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
def test_case_whitespace_and_unicode_form_do_not_make_another_question(first: str, other: str) -> None:
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


def test_equal_questions_with_different_options_are_different() -> None:
    index = DuplicateIndex()
    assert index.add("a", "Which is true?", ["A"], ["x", "y"]) is None
    assert index.add("b", "Which is true?", ["A"], ["x", "z"]) is None
    assert index.add("c", "Which is true?", ["B"], ["X", "y "]) is not None


def test_first_duplicate_is_named_and_conflicting_answers_are_reported() -> None:
    index = DuplicateIndex()
    index.add("a", "Why?", ["x"])
    found = index.add("b", "why?", ["y"])
    assert found is not None
    assert (found.key, found.same_answers) == ("a", False)
    again = index.add("c", "Why?", ["X"])
    assert again is not None
    assert (again.key, again.same_answers) == ("a", True)


def test_questions_from_one_template_are_all_kept() -> None:
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


@settings(max_examples=examples(60), deadline=None)
@given(WORDS, WORDS)
def test_similarity_is_symmetric_and_one_only_for_equal_sets(left: list[str], right: list[str]) -> None:
    a, b = shingles(left), shingles(right)
    assert jaccard(a, b) == jaccard(b, a)
    assert (jaccard(a, b) == 1.0) == (a == b)
    assert is_same_question(QuestionFeatures(left), QuestionFeatures(right)) == is_same_question(
        QuestionFeatures(right), QuestionFeatures(left)
    )


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=12))
def test_every_question_is_kept_or_duplicates_a_kept_one(texts: list[list[str]]) -> None:
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


@settings(max_examples=examples(40), deadline=None)
@given(st.text(max_size=60))
def test_any_text_can_be_compared(text: str) -> None:
    index = DuplicateIndex()
    tokens = tokenize(text)
    assert all(token and not token.isspace() for token in tokens)
    assert index.add("a", text, ["x"]) is None
    assert index.add("b", text, ["x"]) is not None


NAMES = ["Vorna", "Tesk", "Arn", "Ilme", "vorna", "VORNA", "X", "x"]
NOUN_TEXT = (
    "kangaroo kangaroos elephant elefant river rivers riverr boat hill keeper keepers sailor harbour harbuor seagull"
)
NOUNS = NOUN_TEXT.split()
OTHER = ["the", "a", "of", "in", "please", "that", "this", "what", "is", "not", "never", "3", "17", "+", "="]
ROAD = (
    "The map of the northern counties shows a road from the harbour over the hills to the house of the {}. It was "
    "built in the year after the flood and passes the {} before it turns towards the sea. Is it true that the {} is "
    "longer than the river that runs next to it, if both are measured by the same keeper on the same {}?"
)


def vary(chance: random.Random, words: list[str]) -> list[str]:
    """Return a question with a few words changed, added, left out, moved or written otherwise."""
    words = list(words)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        place, word = chance.randrange(len(words)), chance.choice(chance.choice([NAMES, NOUNS, NOUNS, OTHER]))
        match chance.randrange(5):
            case 0:
                words[place] = word
            case 1:
                words.insert(place, word)
            case 2 if len(words) > 1:
                words.pop(place)
            case 3:
                words[place] = chance.choice([words[place].upper(), words[place].capitalize(), words[place].lower()])
            case _:
                other = chance.randrange(len(words))
                words[place], words[other] = words[other], words[place]
    return words


def random_set(chance: random.Random) -> list[str]:
    bases = [
        [chance.choice(NAMES + NOUNS + OTHER) for _ in range(chance.choice([3, 8, 20, 40, 60]))]
        for _ in range(chance.choice([1, 2, 4]))
    ]
    texts = []
    for _ in range(100):
        words = vary(chance, chance.choice(bases))
        if chance.random() < 0.2:
            bases.append(words)
        texts.append(" ".join(words))
    return texts


def set_of_a_template(chance: random.Random) -> list[str]:
    fillers = ["Vorna", "vorna", "Tesk", "kangaroo", "elephant", "elefant", "elephants"]
    return [ROAD.format("keeper", chance.choice(fillers), "road", chance.choice(fillers)) for _ in range(100)]


def set_of_permutations(chance: random.Random) -> list[str]:
    """Return the same words in other orders, some of them misspelled or with one more."""
    texts = []
    for _ in range(100):
        nouns = chance.sample(["river", "harbour", "kangaroo", "elephant"], 4)
        texts.append(ROAD.format(*nouns).replace("road", chance.choice(["road", "road", "rode", "long road"])))
    return texts


def set_of_function_words(chance: random.Random) -> list[str]:
    return [" ".join(vary(chance, ROAD.format("a", "the", "of", "to").split())) for _ in range(100)]


@pytest.mark.parametrize("many", [0, duplicates._MAX_LSH_CANDIDATES])
@pytest.mark.parametrize("make", [random_set, set_of_a_template, set_of_permutations, set_of_function_words])
def test_finds_the_same_duplicates_as_pairwise_comparison(
    make: Callable[[random.Random], list[str]], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "_DIRECTLY_COMPARED", many // 2)
    monkeypatch.setattr(duplicates, "_MAX_LSH_CANDIDATES", many)
    monkeypatch.setattr(word_index, "_LEAF", 2)
    num_near = 0
    for seed in range(3):
        chance = random.Random(seed)
        threshold = chance.choice([0.51, 0.6, 0.8, 0.9])
        plain, index = PlainIndex(threshold), DuplicateIndex(threshold)
        for number, text in enumerate(make(chance)):
            answers = chance.sample(["a", "b", "c"], chance.choice([1, 1, 2]))
            choices = chance.choice([(), (), (), ("Ilme", "Arn")])
            heldout = chance.random() < 0.3
            expected = plain.add(str(number), text, answers, choices, heldout=heldout)
            found = index.add(str(number), text, answers, choices, heldout=heldout)
            told = (found.kind, found.key, found.same_answers, found.similarity) if found else None
            assert told == expected, text
            num_near += told is not None and told[0] == "near_duplicate"
    assert num_near > 5


def num_compared(texts: list[str], answers: list[str], monkeypatch: pytest.MonkeyPatch, *, heldout: bool) -> int:
    """Return how many pairs of questions are compared in full, if all of them are kept."""
    compared = []
    monkeypatch.setattr(duplicates, "is_same_question", lambda *pair: compared.append(pair) or False)
    index = DuplicateIndex()
    assert [index.add(str(n), *one, heldout=heldout) for n, one in enumerate(zip(texts, answers, strict=True))] == (
        [None] * len(texts)
    )
    return len(compared)


WORDS_APART = ["".join(random.Random(n).choices("bcdfghjklmnpqrstvwxz", k=9)) for n in range(400)]
ALIKE: dict[str, tuple[list[str], bool]] = {
    "numbers": ([f"What is the capital number {n} of the land on the other side?" for n in range(400)], False),
    "names": ([ROAD.format(word.title(), "mill", "road", "day") for word in WORDS_APART], False),
    "nouns": ([ROAD.format(word, "mill", "road", "day") for word in WORDS_APART], False),
    "combinations": (
        [
            ROAD.format(*(WORDS_APART[20 * slot + n // 20**slot % 20] for slot in (0, 1)), "road", "day")
            for n in range(400)
        ],
        False,
    ),
    "one held-out question": ([ROAD] * 400, True),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_compares_only_a_few_similar_questions(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, heldout = ALIKE[kind]
    answers = [[str(n)] if heldout else ["yes"] for n in range(len(texts))]
    assert num_compared(texts, answers, monkeypatch, heldout=heldout) <= 20 * len(texts)  # type: ignore[arg-type]


@pytest.mark.parametrize("buffered", [1, 40, 8_192])
@settings(max_examples=examples(100), deadline=None)
@given(
    words=st.lists(st.text("abcde", min_size=5, max_size=16), min_size=1, max_size=12),
    word=st.text("abcde", min_size=5, max_size=20),
)
def test_finds_all_misspellings_of_a_word(words: list[str], word: str, buffered: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spellings, "_BUFFERED", buffered)
        index = spellings.Spellings()
        index.near(word)
        for one in words:
            index.add(one)
        expected = {one for one in words if is_misspelling(word, one) or is_misspelling(one, word)}
        assert set(index.near(word)) - {word} == expected - {word}


@settings(max_examples=examples(100), deadline=None)
@given(st.text("abcdefghij", min_size=5, max_size=12), st.data())
def test_finds_misspellings_with_missing_added_and_swapped_letters(word: str, data: st.DataObject) -> None:
    other = word
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(other)))
        kept = data.draw(st.integers(0, 2))
        other = other[:place] + data.draw(st.text("abxyz", max_size=1)) + other[place + kept % 2 :]
    index = spellings.Spellings()
    index.add(word)
    if other != word:
        assert (word in index.near(other)) is (is_misspelling(other, word) or is_misspelling(word, other))


def test_compares_a_new_word_with_only_a_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(spellings, "is_misspelling", lambda *pair: compared.append(pair) or False)
    monkeypatch.setattr(spellings._Words, "like", lambda words, word: pytest.fail(f"{word} is compared with all words"))
    index = spellings.Spellings()
    for seed in range(2_000):
        chance = random.Random(seed)
        index.add("".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.choice([7, 8, 9]))))
    assert len(compared) < 2_000


def test_letter_sequences_that_are_not_words_are_not_aligned() -> None:
    sequences = ["".join(random.Random(seed).choices("ACGT".lower(), k=5_000)) for seed in range(2)]
    assert not is_misspelling(*sequences)
    assert second(f"{STORY} {sequences[0]}", f"{STORY} {sequences[1]}") is None


class TestContamination:
    """A benchmark question inside a training question."""

    def find(self, benchmark: str, training: str, overlap: float = 0.5) -> str | None:
        index = BenchmarkIndex(overlap)
        index.add("bench", 4, "Something else entirely?")
        index.add("bench", 7, benchmark)
        found = index.find(training)
        assert found is None or (found.benchmark, found.row) == ("bench", 7)
        return found.match if found else None

    def test_equal_question_is_found_regardless_of_case_and_punctuation(self) -> None:
        assert self.find("Who built it?", "who built it") == "equals it"

    def test_short_question_is_found_inside_a_longer_one(self) -> None:
        short = "In which year was the bridge of Vorna built?"
        assert self.find(short, f"Think first. {short} Answer in one word.") == "contains it"

    def test_very_short_question_is_not_searched_inside_others(self) -> None:
        assert self.find("Who built it?", "A bridge stands in Vorna. Who built it?") is None

    def test_copied_half_is_found_but_a_shared_phrase_is_not(self) -> None:
        half = " ".join(STORY.split()[:40])
        few = " ".join(STORY.split()[:16])
        assert self.find(STORY, f"{half} and then something else happens.") is not None
        assert self.find(STORY, f"{few} and then something else happens.") is None
        assert self.find(STORY, f"{few} and then something else happens.", overlap=0.1) is not None

    def test_twelve_shared_words_are_not_a_copy(self) -> None:
        twelve = " ".join(STORY.split()[:12])
        assert self.find(STORY, f"{twelve} x", overlap=0.0) is None

    @pytest.mark.parametrize("common", [0, 2, 8])
    def test_finds_the_same_rows_as_pairwise_comparison(self, common: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contamination, "_MAX_RARE_OCCURRENCES", common)
        num_found = 0
        for seed in range(8):
            chance = random.Random(seed)
            overlap = chance.choice([0.1, 0.3, 0.5, 0.9])
            plain, index = PlainBenchmarks(overlap), BenchmarkIndex(overlap)
            bases = [[chance.choice("abcdefghij") for _ in range(length)] for length in (14, 30, 60)]

            def question(chance: random.Random = chance, bases: list[list[str]] = bases) -> str:
                words = list(chance.choice(bases)) + list(chance.choice([[], [], chance.choice(bases)]))
                for _ in range(chance.choice([0, 1, 2, 4])):
                    words[chance.randrange(len(words))] = chance.choice("klmnop")
                return " ".join(words)

            for number in range(30):
                text = question()
                plain.add(text)
                index.add("bench", number, text)
            for _ in range(40):
                text = question()
                found, expected = index.find(text), plain.find(text, RUN_TOKENS)
                if found is None or found.match.startswith("shares"):
                    assert (found and found.row) == (expected and expected[0])
                    num_found += found is not None
                    assert found is None or f"{expected[1]:.0%}" in found.match  # type: ignore[index]
        assert num_found > 50

    def test_shared_template_of_benchmark_and_training_questions_is_compared_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shares = []
        share = BenchmarkIndex._share
        monkeypatch.setattr(BenchmarkIndex, "_share", lambda *pair: shares.append(pair) or share(*pair))
        for overlap, row in ((0.9, 0), (0.99, None)):
            index = BenchmarkIndex(overlap)
            for number in range(300):
                index.add("bench", number, ROAD.format(f"Bench{number}", "mill", "road", number))
            shares.clear()
            found = [index.find(ROAD.format(f"Train{number}", "mill", "road", -number - 1)) for number in range(300)]
            assert {one and one.row for one in found} == {row}
            assert len(shares) <= 4 * 300
