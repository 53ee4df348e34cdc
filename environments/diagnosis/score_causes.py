"""Hold the problems of scores and their likely causes, each with the condition under which it is reported."""

from __future__ import annotations

from treadle.environments.diagnosis.problem import FEW, Cause, Problem, ProblemTable
from treadle.environments.diagnosis.score_facts import JudgeCounts, ScoreFacts


def _agreeing(facts: ScoreFacts) -> list[str]:
    """Return the judges that accept all of at least `FEW` answers, or give them all the same grade.

    A judge that rejects every answer may be right: it is asked only about answers that no rule accepts.
    """
    return [judge for judge, said in facts.judges.items() if _is_constant(said)]


def _is_constant(said: JudgeCounts) -> bool:
    if said.num_grades:
        return said.num_grades >= FEW and len(said.grades) == 1
    return said.num_right >= FEW and not said.num_wrong


def _constant_sentence(facts: ScoreFacts) -> str:
    return "; ".join(f"judge {judge} {_constant(facts.judges[judge])}" for judge in _agreeing(facts))


def _constant(said: JudgeCounts) -> str:
    if said.num_grades:
        return f"grades all {said.num_grades:,} answers that it was asked about alike"
    return f"accepts all {said.num_right:,} answers that it was asked about"


_PROBLEMS: tuple[Problem[ScoreFacts], ...] = (
    Problem(
        "no_verdict",
        lambda f: 2 * f.num_undecided > f.num > 0,
        lambda f: f"{f.num_undecided:,} of {f.num:,} rollouts have no verdict",
    ),
    Problem(
        "empty_answers",
        lambda f: f.num_answered >= FEW and 2 * f.num_empty > f.num_answered,
        lambda f: f"{f.num_empty:,} of {f.num_answered:,} rollouts that ended with an answer have an empty one",
    ),
    Problem(
        "same_answer",
        lambda f: f.num_with_answer >= FEW and f.num_questions >= FEW and len(f.answers) == 1,
        lambda f: f"all {f.num_with_answer:,} answers to {f.num_questions:,} questions are the same",
    ),
    Problem(
        "none_right",
        lambda f: f.num_with_answer >= FEW and not f.num_right and 2 * f.num_undecided <= f.num,
        lambda f: f"none of {f.num_with_answer:,} answers is right",
    ),
    Problem(
        "same_reward",
        lambda f: f.num_rewards >= FEW and len(f.rewards) == 1 and f.num_successes < f.num_rewards,
        lambda f: f"all {f.num_rewards:,} rewards are {next(iter(f.rewards)):g}",
    ),
    Problem("same_verdict", lambda f: bool(_agreeing(f)), _constant_sentence),
)

_FORM = ("none_right",)

_CAUSES: tuple[Cause[ScoreFacts], ...] = (
    Cause(
        ("no_verdict",),
        lambda f: 2 * f.num_judge_failed > f.num_undecided,
        lambda _: "No judge's reply could be read: raise scores.judges.sampling.max_tokens, or use another judge.",
    ),
    Cause(
        ("no_verdict",),
        lambda f: 2 * f.num_judge_failed <= f.num_undecided,
        lambda f: f"The scorer failed, most often with: {f.common_error or 'no reason'}.",
    ),
    Cause(
        ("empty_answers",),
        lambda _: True,
        lambda _: (
            r"Boxes or answers are opened and left empty, or a \boxed{ is not closed: show the form of an answer in "
            "environment.system_prompt, or raise rollouts.sampling.max_tokens."
        ),
    ),
    Cause(
        _FORM,
        lambda f: f.often("gold_letter"),
        lambda _: (
            "Gold answers are letters of options, answers are not: name the options with choices_field of the source."
        ),
    ),
    Cause(
        _FORM,
        lambda f: f.often("gold_option"),
        lambda _: (
            'Answers are letters of options, gold answers are not: set answer_form = "choice_index" of the source if '
            "they are positions, or domain if they are texts."
        ),
    ),
    Cause(
        _FORM,
        lambda f: f.often("gold_list"),
        lambda _: (
            'Gold answers are lists or objects as text: set answer_form = "json_list" or "first_item" of the source, '
            "or name the field with the answer alone in answer_field."
        ),
    ),
    Cause(
        _FORM,
        lambda f: f.often("gold_long"),
        lambda _: (
            "Gold answers are much longer than the answers, such as whole solutions: set answer_form = "
            '"boxed_solution" of the source, or name the field with the answer alone in answer_field.'
        ),
    ),
    Cause(
        _FORM,
        lambda f: f.often("holds_gold") or f.often("answer_long"),
        lambda _: (
            "Answers are sentences, gold answers short: ask for the answer alone in environment.system_prompt, or name "
            "a judge in scores.judges.models."
        ),
    ),
    Cause(
        _FORM,
        lambda f: any(said.num_wrong >= FEW and not said.num_right for said in f.judges.values()),
        lambda _: "The judges reject every answer: read their replies in the table judgements.",
    ),
    Cause(
        _FORM,
        lambda f: len(f.answers) != 1 and not any(f.often(mark) for mark in f.marks),
        lambda _: (
            "Gold answers may have another form than the answers: compare them below, and set answer_field, "
            "answer_form or domain of the source."
        ),
    ),
    Cause(
        ("same_answer", "none_right"),
        lambda f: len(f.answers) == 1,
        lambda _: (
            "The model may not see the question, or repeats the example of the prompt: look at a prompt with "
            "`treadle show`."
        ),
    ),
    Cause(
        ("same_reward",),
        lambda _: True,
        lambda _: (
            "The score of the environment may not depend on what the model does, or the task is out of its reach: look "
            "at an outcome with `treadle show`."
        ),
    ),
    Cause(
        ("same_verdict",),
        lambda _: True,
        lambda _: (
            "The judge may not see gold answer and answer, or its prompt leaves it no choice: read its replies in the "
            "table judgements, and try scores.judges.prompt or another model."
        ),
    ),
)

SCORE_PROBLEMS = ProblemTable(_PROBLEMS, _CAUSES)
"""Problems of scores, and their likely causes."""
