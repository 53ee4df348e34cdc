"""Where the well-known data sets keep question, answer and options: one table instead of name tests in the code.

A source names its data set; the rule of that name fills in whatever fields the source leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Domain = Literal["math", "qa", "choice"]
AnswerForm = Literal["plain", "gsm8k", "boxed_solution", "first_item", "before_parenthesis", "choice_index"]
"""How the gold answer lies in its field. `plain`: a string, number, boolean or list of them. `gsm8k`: the number
after `#### `. `boxed_solution`: the content of the last box of a worked solution, else all of it. `first_item`: the
first element of a list. `before_parenthesis`: up to the first ` (`. `choice_index`: 0-based number of the option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRule:
    """Fields of one data set. Of several names the first that the row has is taken."""

    domain: Domain | None = None
    question: tuple[str, ...] = ("question",)
    prefix: tuple[str, ...] = ()
    """A field put before the question, with one blank between, such as the story of a word problem."""
    answer: tuple[str, ...] = ("answer",)
    answer_form: AnswerForm = "plain"
    choices: tuple[str, ...] = ()
    """A field with the list of options."""
    choice_columns: tuple[str, ...] = ()
    """Fields with one option each; an option that is missing or null ends the list."""


_QA = FieldRule(domain="qa")
_MATH = FieldRule(domain="math", question=("question", "problem"))
_STORY = FieldRule(
    domain="math", prefix=("body", "Body"), question=("question", "Question"), answer=("answer", "Answer")
)

RULES: dict[str, FieldRule] = {
    "aime": _MATH,
    "amc23": _MATH,
    "math500": _MATH,
    "math": FieldRule(domain="math", question=("problem", "question")),
    "dapo": _MATH,
    "numina": _MATH,
    "openr1": _MATH,
    "still": _MATH,
    "tabmwp": _MATH,
    "gaokao2023en": _MATH,
    "college_math": _MATH,
    "gsm8k": FieldRule(domain="math", answer_form="gsm8k"),
    "svamp": _STORY,
    "asdiv": FieldRule(
        domain="math",
        prefix=_STORY.prefix,
        question=_STORY.question,
        answer=_STORY.answer,
        answer_form="before_parenthesis",
    ),
    "mawps": FieldRule(domain="math", question=("input",), answer=("target",)),
    "carp_en": FieldRule(domain="math", question=("content",)),
    "minerva_math": FieldRule(domain="math", question=("problem",), answer=("solution",), answer_form="boxed_solution"),
    "olympiadbench": FieldRule(domain="math", answer=("final_answer",), answer_form="first_item"),
    "2wiki": _QA,
    "2wikimultihopqa": _QA,
    "hotpotqa": _QA,
    "hotpot_qa": _QA,
    "musique": _QA,
    "bamboogle": _QA,
    "nq": _QA,
    "triviaqa": _QA,
    "trivia_qa": _QA,
    "simpleqa": FieldRule(domain="qa", question=("question", "problem")),
    "webwalker": _QA,
    "xbench": _QA,
    "hle": _QA,
    "gaia": FieldRule(domain="qa", question=("Question", "question"), answer=("answer", "Final answer")),
    "gpqa": FieldRule(domain="choice"),
    "csbench": FieldRule(domain="qa", question=("Question",), answer=("Answer",), choice_columns=("A", "B", "C", "D")),
    "mmlu-pro": FieldRule(domain="choice", choices=("options",)),
    "mmlu": FieldRule(domain="choice", choices=("choices",), answer_form="choice_index"),
}
"""Data sets by name. A row with options is multiple choice whatever its data set's domain."""

GENERIC = FieldRule(question=("question", "input"))
"""Where no rule fits."""


def rule_for(dataset: str) -> FieldRule:
    """The rule of a data set; years and splits after a known name do not matter (`aime24`, `gsm8k-train`)."""
    name = dataset.lower()
    if name in RULES:
        return RULES[name]
    if "aime" in name:
        return RULES["aime"]
    fitting = [key for key in RULES if name.startswith(key) and not name[len(key)].isalpha()]
    return RULES[max(fitting, key=len)] if fitting else GENERIC
