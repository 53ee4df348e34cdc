r"""The figures as the program published with arXiv 2601.06860 makes them, to compare scores with those published.

Only `treadle export report --format legacy` and differential tests come here. Known faults, kept on purpose, each named
where it is: what is scored in place of a missing answer, tags counted wherever they stand, a judge's words searched for
parts, failures found by the word `error`, ties and silence of the judge of conciseness taken for praise, and a figure
that rises with wasted calls. Matching of words and of mathematics as it was then: `legacy_match_text`,
`textually_equal`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treadle.core.answers.math_equal import textually_equal
from treadle.core.answers.text_match import TextMatch, legacy_match_text, normalize_math, token_f1
from treadle.eval.statistics import mean_of

PRODUCTIVITY_SIGMA = 0.1

F1_DATASETS = frozenset({"2wiki", "hotpotqa", "musique", "bamboogle"})
"""Parts of names of data sets whose successful execution takes F1 for correctness; elsewhere it takes the judge."""

_RESULT = re.compile(r"<result>.*?</result>", re.DOTALL)
_RESULT_TO_END = re.compile(r"<result>.*?(?:</result>|\Z)", re.DOTALL)
_INFORMATION_TO_END = re.compile(r"<information>.*?(?:</information>|\Z)", re.DOTALL)
_VOTE = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_JUDGMENT = re.compile(r"<judgment>(.*?)</judgment>", re.DOTALL)
_FAILURES = ("Execution Timeout", "Tool execute failed")


@dataclass(frozen=True, slots=True)
class LegacySample:
    """One line of the original's file of metrics."""

    domain: str
    """math or qa."""
    em: float
    acc: float
    f1: float
    math_equal: float
    llm_equal: float
    """The judge's verdict, or equality in mathematics; 0 without judges."""
    is_valid_answer: bool
    python_calls: int
    search_calls: int

    @property
    def tool_counts(self) -> int:
        """T, by tags."""
        return self.python_calls + self.search_calls


def legacy_scored_text(prediction: str, output: str) -> str:
    """The prediction; without one the last five lines of the output, once double newlines are single ones."""
    return prediction or "\n".join(output.replace("\n\n", "\n").strip().split("\n")[-5:])


def legacy_gold(answer: str | bool | float | Sequence[str]) -> list[str]:
    """Gold answers: a string in square brackets is split at commas, so that an interval becomes two answers."""
    if isinstance(answer, bool | int | float):
        return [str(answer)]
    if not isinstance(answer, str):
        return [str(item) for item in answer]
    return [part.strip() for part in answer.strip("[]").split(",")] if answer.startswith("[") else [answer]


def legacy_sample(
    prediction: str, output: str, answer: str | bool | float | Sequence[str], domain: str, llm_equal: float = 0.0
) -> LegacySample:
    """Score one sample; without any text to score every figure but the counts is 0 and the sample is not valid."""
    text = legacy_scored_text(prediction, output)
    gold = legacy_gold(answer)
    match = TextMatch(0.0, 0.0, 0.0)
    equal = 0.0
    if text:
        match = legacy_match_text(text, gold) if domain == "qa" else _match_math(text, gold[0])
        equal = float(domain == "math" and textually_equal(text, gold[0]))
    return LegacySample(
        domain=domain,
        em=match.em,
        acc=match.acc,
        f1=match.f1,
        math_equal=equal,
        llm_equal=llm_equal if text else 0.0,
        is_valid_answer=bool(text),
        python_calls=legacy_count_tag(output, "python"),
        search_calls=legacy_count_tag(output, "search"),
    )


def _match_math(text: str, gold: str) -> TextMatch:
    predicted, reference = normalize_math(text), normalize_math(gold)
    f1 = token_f1(predicted.split(), reference.split()) if predicted and reference else 0.0
    return TextMatch(float(predicted == reference), float(reference in predicted), f1)


def legacy_count_tag(output: str, tag: str) -> int:
    """Pairs of tags anywhere, in results and in prose too; a closing tag pairs with the earliest open one."""
    return len(re.findall(rf"<{tag}>.*?</{tag}>", output, re.DOTALL))


def legacy_output_length(output: str) -> int:
    """Characters without the results that are closed."""
    return len(_RESULT.sub("", output))


def legacy_verdict(reply: str, prediction: str, gold: str) -> int:
    """The judge's reply by parts of words: `not entirely correct` is 1, `correct, not wrong` is 0, `Yes` is 0."""
    judgment = _JUDGMENT.search(reply)
    said = (judgment[1] if judgment else reply).lower()
    praised = "correct" in said and not any(word in said for word in ("incorrect", "wrong", "not correct"))
    return int(praised or textually_equal(prediction, gold))


def legacy_efficiency(samples: Sequence[LegacySample]) -> float:
    """Mean of P / T, P without calls; P of math is the judge's even where there is no judge, hence 0."""
    return mean_of(
        [
            _judged_or_f1(sample) / sample.tool_counts if sample.tool_counts else _judged_or_f1(sample)
            for sample in samples
        ]
    )


def _judged_or_f1(sample: LegacySample) -> float:
    return sample.llm_equal if sample.domain == "math" else sample.f1


def legacy_productivity(correctness: float, mean_calls: float) -> float:
    """`tool_productivity`, 100 · A · T / (T + 0.1): more calls raise it, and without calls it is 0."""
    return 100 * correctness * mean_calls / (mean_calls + PRODUCTIVITY_SIGMA) if mean_calls else 0.0


def legacy_overall(samples: Sequence[LegacySample], *, judged: bool) -> dict[str, float | str]:
    """The aggregate under the original's names, means over all samples; without its date."""
    if judged:
        correctness = mean_of([sample.llm_equal for sample in samples])
    else:
        correctness = mean_of([sample.math_equal if sample.domain == "math" else sample.f1 for sample in samples])
    mean_calls = mean_of([sample.tool_counts for sample in samples])
    productivity = legacy_productivity(correctness, mean_calls)
    return {
        "em": mean_of([sample.em for sample in samples]),
        "acc": mean_of([sample.acc for sample in samples]),
        "f1": mean_of([sample.f1 for sample in samples]),
        "math_equal": mean_of([sample.math_equal for sample in samples]),
        "llm_equal": mean_of([sample.llm_equal for sample in samples]),
        "num_valid_answer": f"{sum(sample.is_valid_answer for sample in samples)} of {len(samples)}",
        "tool_call": mean_calls,
        "average_python_calls": mean_of([sample.python_calls for sample in samples]),
        "average_search_calls": mean_of([sample.search_calls for sample in samples]),
        "average_datas_used_tool_number": mean_of([sample.tool_counts > 0 for sample in samples]),
        "tool_productivity": productivity,
        "m1m2": productivity,
        "efficiency": legacy_efficiency(samples),
    }


def legacy_vote(reply: str) -> str:
    """yes, no or abstain, by the first letters: `none` and `not sure` are no; a tag that never closes is not read."""
    answer = _VOTE.search(reply)
    said = (answer[1] if answer else reply).lower().strip(string.punctuation + string.whitespace)
    return "yes" if said.startswith("yes") else "no" if said.startswith("no") else "abstain"


def legacy_conciseness(votes: Sequence[tuple[int, int]]) -> float:
    """Share of samples, as (yes, no), without more yes than no; a tie and a judge that never answered are praise."""
    return mean_of([yes <= no for yes, no in votes])


def legacy_results(output: str) -> list[str]:
    """Contents of the results that are closed."""
    return [block.removeprefix("<result>").removesuffix("</result>") for block in _RESULT.findall(output)]


def legacy_failed_results(results: Sequence[str]) -> int:
    """Results that count as failed: empty, one of two messages, or the word error anywhere."""
    return sum(
        result == "" or any(message in result for message in _FAILURES) or "error" in result.lower()
        for result in results
    )


def legacy_successful_execution(samples: Sequence[tuple[float, Sequence[str]]]) -> tuple[float, float | None]:
    """Mean of P / max(Wrong, 1) and the share of results that did not fail, from P and the results of each sample."""
    failed = [legacy_failed_results(results) for _, results in samples]
    terms = [score / max(wrong, 1) for (score, _), wrong in zip(samples, failed, strict=True)]
    calls = sum(len(results) for _, results in samples)
    return mean_of(terms), (calls - sum(failed)) / calls if calls else None


def legacy_execution_score(sample: LegacySample, dataset: str) -> float:
    """P of successful execution and reasoning length, by the name of the data set."""
    return sample.f1 if any(name in dataset.lower() for name in F1_DATASETS) else sample.llm_equal


def legacy_reasoning_text(output: str) -> str:
    """The output without results; one that is not closed takes everything behind it along."""
    return _RESULT_TO_END.sub("", output)


def legacy_reasoning_of_information(output: str) -> str:
    """The same where results stand in `<information>`, as IKEA writes them."""
    return _INFORMATION_TO_END.sub("", output)


def legacy_reasoning_of_steps(steps: Sequence[str]) -> str:
    """The same of a list of steps, as SMART writes them: what follows the last word `output` of a step is a result."""
    return "".join(step[: end if (end := step.lower().rfind("output")) >= 0 else None] for step in steps)


def legacy_reasoning_length(samples: Sequence[tuple[float, str]], count_tokens: Callable[[str], int]) -> float:
    """Mean of P / L, not yet per thousand, from P and the output of each sample; L is at least 1."""
    return mean_of([score / max(count_tokens(legacy_reasoning_text(output)), 1) for score, output in samples])
