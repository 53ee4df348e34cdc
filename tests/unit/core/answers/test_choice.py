"""The choice rule."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.answers.choice import match_choice
from treadle.core.answers.choice_letters import letters_named
from treadle.core.answers.rules import score_answer

CITIES = ["Paris", "London", "Rome"]
COLOURS = ["red", "green", "blue", "yellow"]


@pytest.mark.covers("evaluation-2")
@pytest.mark.covers("evaluation-29")
@pytest.mark.parametrize(
    ("prediction", "value"),
    [("A", 1.0), ("B", 0.0), ("(A)", 1.0), ("[a]", 1.0), ("A.", 1.0), ("A) because", 1.0), ("A: x", 1.0)],
)
def test_single_letter_gold_uses_the_choice_rule(prediction: str, value: float) -> None:
    score = score_answer(prediction, ["A"], domain="qa")
    assert (score.parts, score.score, score.scorer) == (dict.fromkeys(("em", "acc", "f1"), value), value, "choice")


@pytest.mark.parametrize(
    ("prediction", "answers", "right"),
    [
        ("B", ["B"], True),
        ("london", ["B"], True),
        ("The London.", ["B"], True),
        ("B", ["London"], True),
        ("B. London", ["B"], True),
        ("**B**", ["B"], True),
        (r"\text{B}", ["B"], True),
        ("The answer is (B)", ["B"], True),
        ("either (A) or (B)", ["B"], False),
        ("Rome", ["B"], False),
        ("C", ["B"], False),
        ("D", ["B"], False),
        ("A band from London", ["A"], False),
        ("", ["B"], False),
    ],
)
def test_accepts_letter_or_option_text(prediction: str, answers: list[str], right: bool) -> None:
    assert match_choice(prediction, answers, CITIES) is right


def test_whole_option_text_takes_precedence_over_a_leading_letter() -> None:
    assert match_choice("E. coli", ["B"], ["yeast", "E. coli", "x", "y", "z"])


def test_options_with_numbers_keep_their_punctuation() -> None:
    assert match_choice("1/2", ["A"], ["1/2", "12"])
    assert not match_choice("1/2", ["B"], ["1/2", "12"])


@pytest.mark.covers("evaluation-2")
@pytest.mark.parametrize("answers", [["(B) K+"], ["(B)", "K+"], ["B. K+"], ["B", "(B) K+"]])
@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("B", True),
        ("(B)", True),
        ("(B) K+", True),
        ("K+", True),
        (r"\text{K+}", True),
        ("k+.", True),
        ("K-", False),
        ("K", False),
        ("A", False),
        ("(A) K+", False),
        ("Na+", False),
        ("", False),
        (".", False),
    ],
)
def test_accepts_letter_or_text_of_an_option_embedded_in_the_question(
    answers: list[str], prediction: str, right: bool
) -> None:
    assert score_answer(prediction, answers, domain="choice").correct is right


def test_single_gold_letter_does_not_match_empty_text() -> None:
    for prediction in ("", ".", "()", "$$"):
        assert not match_choice(prediction, ["(B)", "B."])


def test_math_option_may_lack_its_brackets() -> None:
    assert score_answer("C", [r"\text{(C)}"], domain="math").correct is True
    assert score_answer("(D)", [r"\text{(C)}"], domain="math").correct is False
    assert score_answer("y", ["x"], domain="math").scorer != "choice"


@pytest.mark.parametrize("choices", [COLOURS, []])
@pytest.mark.parametrize(
    "prediction",
    [
        "C", "c", "C.", "C!", "(C)", "(c)", "[C]", "**C**", "*C*", "`C`", '"C"', "\u201cC\u201d", "$C$", "\uff23",
        "\uff08C\uff09",
        r"\boxed{C}", r"\text{C}", r"\textbf{(C)}", r"The answer is $\boxed{C}$",
        "The answer is C", "the answer is c", "The answer is (C).", "The answer is **C**.",
        "Therefore, the answer is C",
        "The correct answer is option C.", "The answer to this question is C", "Answer: C", "answer: c",
        "**Answer:** C",
        "Final Answer: C", "The final answer is: C", "Answer: $C$", "Answer C", "the correct choice is: (c)",
        "Option C", "choice c", "I think it is C", "It must be C", "I would choose C", "C is correct",
        "C is the correct answer", "The answer is C because it is the sky's",
        "C, blue", "C) blue", "C. blue", "C: blue", "C - blue", "C \u2013 blue", "(C) blue", "(c) blue", "**C. blue**",
        "The answer is (C) blue", "Answer: C, blue",
        "not B but C", "The answer is not B but C", "C, not B", "C rather than B", "Option A is wrong; the answer is C",
        "B is wrong, so the answer is C", "(C) because (A) is wrong", "C. Both (A) and (B) are wrong",
        "C) blue, since (A) and (B) are wrong",
        "\u7b54\u6848\uff1aC", "\u9009C", "\u9009\u9879C", "C\u3001blue", "\u6b63\u89e3\u306fC", "\uc815\ub2f5\uc740 C",
    ],
)  # fmt: skip
def test_single_option_named_in_a_sentence_is_accepted(prediction: str, choices: list[str]) -> None:
    right = {letter for letter in "ABCD" if match_choice(prediction, [letter], choices)}
    assert right == {"C"}


@pytest.mark.parametrize("choices", [COLOURS, []])
@pytest.mark.parametrize(
    "prediction",
    [
        "(B) or (C)", "B or C", "b or c", "A and C", "Both A and C are correct", "A/C", "A & C", "A, C",
        "A, B, and C", "(B), (C)",
        "(B) green or (C) blue", "The answer is either B or C", "B. But actually the answer is C", "AC",
        "neither A nor B",
        "not (C)", "It isn't B", "The answer is not B", "C is incorrect", "A blue car", "The answer is A blue car",
        "vitamin C", "plan B", "hepatitis B virus", "red or green", "blue and yellow", "none of them", "", ".", "()",
    ],
)  # fmt: skip
def test_naming_no_option_or_several_is_never_correct(prediction: str, choices: list[str]) -> None:
    assert not any(match_choice(prediction, [letter], choices) for letter in "ABCDEFGHIJ")


DENIED_AND_CONCLUDED = [
    ("It cannot be B, so C", "C"), ("B is wrong. C.", "C"), ("So C", "C"), ("Therefore, C", "C"), ("{C}", "C"),
    ("### C", "C"), ("<C>", "C"), ("(A)(B)", ""), ("A, but B is also right", ""), ("answer: I am unsure", ""),
    ("The answer is I don't know", ""), ("It would be incorrect to choose B", ""), ("Do not choose B", ""),
    ("Don't pick B", ""), ("I would never choose B", ""), ("The wrong answer is B", ""),
    ("The incorrect option is B", ""), ("The least likely answer is B", ""),
    # Further sentences; these labels were written before the sentences were read for the first time.
    ("The wrong answer is B; the right one is C", "C"), ("The least likely answer is B, the best answer is C", "C"),
    ("I don't think it is B", ""), ("I don't think the answer is (B)", ""), ("I do not believe that it is B", ""),
    ("I would not go with B", ""), ("Never select option B", ""), ("You should avoid B", ""),
    ("It isn't likely to be B", ""), ("The answer can't be B", ""), ("The answer could not be B", ""),
    ("The answer is never B", ""), ("The most unlikely option is B", ""), ("The worst choice would be B", ""),
    ("The option that is wrong is B", ""), ("It is wrong to say that the answer is B", ""),
    ("(B) would be wrong", ""), ("Option B must be excluded", ""), ("Option B is an unlikely answer", ""),
    ("Option B cannot be right", ""), ("Option B does not fit", ""), ("I ruled out B", ""), ("I eliminated (B)", ""),
    ("(A) and (B) are wrong", ""), ("not (A) or (B)", ""), ("Options A and B are wrong, so C", "C"),
    ("A and B are impossible, hence C.", "C"), ("It can't be A or B, so it is C", "C"),
    ("B is unlikely. The answer is C.", "C"), ("Do not choose B; choose C", "C"), ("I prefer C over B", "C"),
    ("I would choose C instead of B", "C"), ("I never liked B. I choose C", "C"),
    ("I am not sure, but I think it is C", "C"), ("I don't know, maybe it is C", "C"),
    ("Nothing else fits. C", "C"), ("Only blue is left. (C)", "C"), ("Thus: C", "C"), ("Consequently, (C).", "C"),
    ("It was made in Washington, D. C.", ""), ("Is it right? C?", ""), ("So C is a vitamin", ""),
    ("The answer is I think blue", ""), ("Answer: I would say nothing", ""), ("C is also correct", "C"),
    ("Both B and C seem right", ""), ("(B) (C)", ""), ("A is right and B is wrong", "A"),
    ("not only (B) but also (C)", ""), ("## Answer: C", "C"),
]  # fmt: skip


@pytest.mark.parametrize("choices", [COLOURS, []])
@pytest.mark.parametrize(("prediction", "letters"), DENIED_AND_CONCLUDED)
def test_negated_letter_is_never_the_answer(prediction: str, letters: str, choices: list[str]) -> None:
    assert "".join(letter for letter in "ABCDEFGHI" if match_choice(prediction, [letter], choices)) == letters


def test_i_is_an_option_unless_a_word_follows() -> None:
    nine = [f"city {number}" for number in range(9)]
    for prediction in ("I", "(I)", "The answer is I", "The answer is I because it is far", "I is correct"):
        assert match_choice(prediction, ["I"], nine)
    for prediction in ("The answer is I believe city 2", "I think so", "I am sure"):
        assert not match_choice(prediction, ["I"], nine)


@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("blue", "C"),
        ("The answer is blue", "C"),
        ("blue (C)", "C"),
        ("C blue", "C"),
        ("a blue", "C"),
        ("A", "A"),
        ("Option A", "A"),
        ("a) red", "A"),
        ("The answer is A.", "A"),
        ("The answer is A because it is red", "A"),
        ("red (C)", ""),
        ("A. blue", ""),
        ("E", ""),
        ("Option E", ""),
        ("The answer is F", ""),
    ],
)
def test_option_letter_and_text_must_not_contradict(prediction: str, right: str) -> None:
    assert "".join(letter for letter in "ABCD" if match_choice(prediction, [letter], COLOURS)) == right


def test_letters_beyond_the_fourth_are_read() -> None:
    ten = [f"city {number}" for number in range(10)]
    for prediction in ("The answer is J", "J, city 9", "(j)", "city 9"):
        assert match_choice(prediction, ["J"], ten) and not match_choice(prediction, ["I"], ten)


def test_option_signs_are_compared_regardless_of_typography() -> None:
    ions = ["K+", "K-", "2*3", "23"]
    assert match_choice("k+", ["A"], ions) and match_choice("K\u2212", ["B"], ions)
    assert match_choice("2*3", ["C"], ions) and not match_choice("2*3", ["D"], ions)
    assert match_choice("The answer is K\u207a", ["(B) K+"])


@given(st.text(max_size=60))
def test_letters_of_any_script_are_letters(text: str) -> None:
    assert all(len(letter) == 1 and letter.isupper() for letter in letters_named(text))


@given(st.text(max_size=40), st.sampled_from(["NFKC", "NFKD"]))
def test_equivalent_texts_name_the_same_option(text: str, form: str) -> None:
    other = unicodedata.normalize(form, text)
    for choices in (COLOURS, []):
        assert match_choice(other, ["C"], choices) == match_choice(text, ["C"], choices)


@given(st.text(max_size=80), st.lists(st.text(max_size=10), max_size=5))
def test_any_text_is_judged(prediction: str, choices: list[str]) -> None:
    assert match_choice(prediction, ["A"], choices) in (True, False)


def test_hostile_text_terminates() -> None:
    for piece in ("(", "A ", " ", "*", "(A) ", "A or ", "not A, ", "answer is ", "$A", "\\text{", "A\u0301", "\u3000"):
        match_choice(piece * 500_000, ["A"], CITIES)
