"""Reproduce the metrics of the program published with arXiv 2601.06860, to compare scores with published ones.

Known faults are kept on purpose and named in the functions that have them: text scored in place of a missing answer,
tags counted anywhere in the output, failures detected by the word `error`, ties and missing replies of the conciseness
judge counted as concise, and a figure that rises with wasted calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.answers.legacy import legacy_match_math, legacy_match_text, legacy_words
from treadle.core.answers.text_match import TextMatch, normalize_math
from treadle.eval.statistics import mean_of

PRODUCTIVITY_SIGMA = 0.1

F1_DATASETS = frozenset({"2wiki", "hotpotqa", "musique", "bamboogle"})
"""Substrings of data set names whose successful execution uses F1 as correctness; others use the judge."""

_RESULT = re.compile(r"<result>.*?</result>", re.DOTALL)
_FAILURES = ("Execution Timeout", "Tool execute failed")


@dataclass(frozen=True, slots=True)
class LegacySample:
    """One line of the published program's file of metrics."""

    domain: str
    """Either "math" or "qa"."""
    em: float
    acc: float
    f1: float
    math_equal: float
    llm_equal: float
    """1 if the answer was accepted by rule or judge, or equals the gold answer as math; else, or without judges, 0."""
    is_valid_answer: bool
    python_calls: int
    search_calls: int

    @property
    def tool_counts(self) -> int:
        """T: number of pairs of `python` and `search` tags in the output, each a tool call."""
        return self.python_calls + self.search_calls


def legacy_scored_text(prediction: str, output: str) -> str:
    """Return the prediction, or without one the last five lines of the output after collapsing double newlines."""
    return prediction or "\n".join(output.replace("\n\n", "\n").strip().split("\n")[-5:])


def legacy_gold(answer: str | bool | float | Sequence[str], domain: str) -> list[str]:
    """Return the gold answers.

    In qa a string that begins with `[` is split at commas, so an interval becomes two answers.
    """
    if isinstance(answer, bool | int | float):
        return [str(answer)]
    if not isinstance(answer, str):
        return [str(item) for item in answer]
    if domain == "qa" and answer.startswith("["):
        return [part.strip() for part in answer.strip("[]").split(",")]
    return [answer]


def legacy_sample(
    prediction: str, output: str, answer: str | bool | float | Sequence[str], domain: str, llm_equal: float = 0.0
) -> LegacySample:
    """Score one sample. Without text to score, every figure except the counts is 0 and the sample is not valid."""
    text = legacy_scored_text(prediction, output)
    gold = legacy_gold(answer, domain)
    match, equal = TextMatch(0.0, 0.0, 0.0), False
    if text and domain == "math":
        match = legacy_match_math(text, gold[0])
        equal = legacy_math_equal(normalize_math(text), normalize_math(gold[0]))
    elif text:
        match = legacy_match_text(text, gold)
        equal = any(legacy_math_equal(legacy_words(text), legacy_words(one)) for one in gold)
    return LegacySample(
        domain=domain,
        em=match.em,
        acc=match.acc,
        f1=match.f1,
        math_equal=float(equal),
        llm_equal=llm_equal if text else 0.0,
        is_valid_answer=bool(text),
        python_calls=legacy_count_tag(output, "python"),
        search_calls=legacy_count_tag(output, "search"),
    )


def legacy_count_tag(output: str, tag: str) -> int:
    """Count pairs of tags anywhere, also in results and prose. A closing tag pairs with the earliest open one."""
    return len(re.findall(rf"<{tag}>.*?</{tag}>", output, re.DOTALL))


def legacy_efficiency(samples: Sequence[LegacySample]) -> float:
    """Return the mean of P / T, or of P for a sample without tool calls; T is `LegacySample.tool_counts`.

    P is the F1 for qa, and the judge's verdict for math, which is 0 without a judge.
    """
    return mean_of(
        [
            _judged_or_f1(sample) / sample.tool_counts if sample.tool_counts else _judged_or_f1(sample)
            for sample in samples
        ]
    )


def _judged_or_f1(sample: LegacySample) -> float:
    return sample.llm_equal if sample.domain == "math" else sample.f1


def legacy_productivity(correctness: float, mean_calls: float) -> float:
    """Return `tool_productivity`, 100 · A · T / (T + 0.1), with correctness A and mean number of calls T.

    More calls raise it, and without calls it is 0.
    """
    return 100 * correctness * mean_calls / (mean_calls + PRODUCTIVITY_SIGMA) if mean_calls else 0.0


def legacy_overall(samples: Sequence[LegacySample], *, judged: bool) -> dict[str, float | str]:
    """Return means over all samples under the published program's names, without the date that it adds."""
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


def legacy_conciseness(votes: Sequence[tuple[int, int]]) -> float:
    """Return the share of samples with at most as many yes as no votes; yes means that a call was wasted.

    Each item has the numbers of yes and no votes. A tie or a missing vote counts as concise.
    """
    return mean_of([yes <= no for yes, no in votes])


def legacy_results(output: str) -> list[str]:
    """Return the contents of the closed `<result>` blocks in an output."""
    return [block.removeprefix("<result>").removesuffix("</result>") for block in _RESULT.findall(output)]


def legacy_failed_results(results: Sequence[str]) -> int:
    """Count failed results: empty, one of two messages, or the word "error" anywhere."""
    return sum(
        result == "" or any(message in result for message in _FAILURES) or "error" in result.lower()
        for result in results
    )


def legacy_successful_execution(samples: Sequence[tuple[float, Sequence[str]]]) -> tuple[float, float | None]:
    """Return the mean of correctness / max(number of failed results, 1), and the share of results that did not fail.

    `samples` has (correctness, results) of each sample.
    """
    failed = [legacy_failed_results(results) for _, results in samples]
    terms = [score / max(wrong, 1) for (score, _), wrong in zip(samples, failed, strict=True)]
    calls = sum(len(results) for _, results in samples)
    return mean_of(terms), (calls - sum(failed)) / calls if calls else None


def legacy_execution_score(sample: LegacySample, dataset: str) -> float:
    """Return the correctness used for successful execution and reasoning length: F1 or verdict, by data set name."""
    return sample.f1 if any(name in dataset.lower() for name in F1_DATASETS) else sample.llm_equal


_DROPPED = (r"\left", r"\right", r"^{\circ}", r"^\circ", r"\$")
_UNIT = r"\text{ "
_HALF = r"\frac{1}{2}"


class _NoForm(Exception):
    """Text on which the published program's own normalisation fails."""


def legacy_math_equal(prediction: str, gold: str) -> bool:
    """Return whether two answers to math questions are equal after the published program's normalisation.

    If it fails for one of them, they must be identical. Letter case, and white space other than blanks and newlines,
    make a difference here; the caller normalises them.
    """
    try:
        return _math_form(prediction) == _math_form(gold)
    except _NoForm:
        return prediction == gold


def _math_form(text: str) -> str:
    text = text.replace("\n", "").replace(r"\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for command in _DROPPED:
        text = text.replace(command, "")
    if text.count(_UNIT) > 1:
        raise _NoForm
    text = text.partition(_UNIT)[0].replace(r"\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = f"0{text}"
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    return _HALF if text == "0.5" else _fraction_of_integers(text)


def _braced_roots(text: str) -> str:
    r"""Put braces around the single character after each `\sqrt`, whichever it is."""
    head, *tails = text.split(r"\sqrt")
    if not all(tails):
        raise _NoForm
    return r"\sqrt".join([head, *(tail if tail[0] == "{" else f"{{{tail[0]}}}{tail[1:]}" for tail in tails)])


def _braced_fractions(text: str) -> str:
    r"""Put braces into `\frac12` and `\frac1{72}`; a single character at the end leaves the whole text unchanged."""
    parts, *tails = text.split(r"\frac")
    for tail in tails:
        if not tail:
            raise _NoForm
        if tail[0] == "{":
            parts += rf"\frac{tail}"
        elif len(tail) == 1:
            return text
        elif tail[1] == "{":
            parts += rf"\frac{{{tail[0]}}}{tail[1:]}"
        else:
            parts += rf"\frac{{{tail[0]}}}{{{tail[1]}}}{tail[2:]}"
    return parts


def _fraction_of_integers(text: str) -> str:
    match = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return rf"\frac{{{match[1]}}}{{{match[2]}}}" if match else text
