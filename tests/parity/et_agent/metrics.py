r"""Parts of the metrics of the program published with arXiv 2601.06860 that only differential tests use.

Known faults, kept on purpose: substring search in a judge's reply, votes read by their first letters, and an unclosed
result that counts for one length and not for the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from treadle.eval.statistics import mean_of
from treadle.formats.et_agent.metrics import legacy_math_equal

_RESULT = re.compile(r"<result>.*?</result>", re.DOTALL)
_SHORT_RESULT = re.compile(r"<r>.*?</r>", re.DOTALL)
_RESULT_TAGS = re.compile(r"</?(?:result|information)>")
_RESULT_TO_END = re.compile(r"<result>.*?(?:</result>|\Z)", re.DOTALL)
_INFORMATION_TO_END = re.compile(r"<information>.*?(?:</information>|\Z)", re.DOTALL)
_VOTE = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_AROUND_VOTE = "\t\n\r .,!?:;\"'()[]{}"
"""Characters stripped around a vote; Markdown marks are not among them."""


def legacy_output_length(output: str) -> int:
    """Return the number of characters without closed results, after stripping surrounding white space."""
    return len(_RESULT.sub("", _SHORT_RESULT.sub("", output)).strip())


def legacy_verdict(reply: str, prediction: str, gold: str) -> int:
    """Parse the judge's reply by substring: `not entirely correct` is 1, `correct, not wrong` is 0, `Yes` is 0.

    An answer equal to the gold answer is right regardless of the reply. Both are compared as written; letter case
    counts.
    """
    said = _judgment(reply).lower()
    praised = "correct" in said and not any(word in said for word in ("incorrect", "wrong", "not correct"))
    return int(praised or legacy_math_equal(prediction, gold))


def _judgment(reply: str) -> str:
    """Return the text between the first opening and the first closing tag, or "" if they are in the wrong order."""
    start, end = reply.find("<judgment>"), reply.find("</judgment>")
    return reply if start < 0 or end < 0 else reply[start + len("<judgment>") : end]


def legacy_vote(reply: str) -> str:
    """Return "yes", "no" or "abstain" from the first letters: `none` and `not sure` count as no.

    An unclosed tag is not read, and a leading Markdown mark makes the vote an abstention.
    """
    reply = reply.lower()
    answer = _VOTE.search(reply)
    said = (answer[1] if answer else reply).strip().strip(_AROUND_VOTE)
    return "yes" if said.startswith("yes") else "no" if said.startswith("no") else "abstain"


def legacy_reasoning_text(output: str) -> str:
    """Return the output without results. An unclosed result also removes everything after it.

    Remaining result tags are removed as well.
    """
    return _RESULT_TAGS.sub("", _RESULT_TO_END.sub("", output))


def legacy_reasoning_of_information(output: str) -> str:
    """Return the output without results in `<information>` tags, the format of IKEA."""
    return _RESULT_TAGS.sub("", _INFORMATION_TO_END.sub("", output))


def legacy_reasoning_of_steps(steps: Sequence[str]) -> str:
    """Return the reasoning of a list of steps, the format of SMART.

    What follows the last "output" of a step is a result and is removed.
    """
    thoughts = (step[: end if (end := step.lower().rfind("output")) >= 0 else None] for step in steps)
    return _RESULT_TAGS.sub("", "".join(thoughts))


def legacy_reasoning_length(samples: Sequence[tuple[float, str]], count_tokens: Callable[[str], int]) -> float:
    """Return the mean of P / L (not per thousand) from (P, output) per sample; L is at least 1."""
    return mean_of([score / max(count_tokens(legacy_reasoning_text(output)), 1) for score, output in samples])
