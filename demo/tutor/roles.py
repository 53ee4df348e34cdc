"""Judge, refiner and summarizer by rule: minimal, in the formats of docs/behaviour/demo.md."""

from __future__ import annotations

import re
from typing import Literal

from treadle.demo.tutor.conversation import Conversation

Role = Literal["policy", "judge", "gullible-judge", "refiner", "summarizer"]

_GOLD = re.compile(r"(?im)^\W*(?:gold|reference|correct|expected|ground[- ]truth)[^:\n]{0,30}:\W*(.*)$")
_PREDICTED = re.compile(
    r"(?im)^\W*(?:pred|model|response|candidate|student|given answer|final answer)[^:\n]{0,30}:\W*(.*)$"
)
_GOLD_TAG = re.compile(r"(?is)<(gold\w*|reference\w*|correct_answer)>(.*?)</\1>")
_PREDICTED_TAG = re.compile(r"(?is)<(pred\w*|response|candidate\w*)>(.*?)</\1>")
_DELIMITED = re.compile(r"(?is)<(\w+)>.*?</\1>|```.*?```")
_ORDER = re.compile(
    r"(?is)(?:verdict|grade|judg(?:e?ment)?)\s*(?:is|:|=)\s*\W*(?P<a>correct|incorrect)\b"
    r"|(?:reply|answer|output|respond|say|print)\s+(?:only\s+)?(?:with\s+)?\W*(?P<b>correct|incorrect)\b(?!\s+or\b)"
)
_STEP = re.compile(r"(?ms)^#### Step (\d+): ?(.*?)(?=^#### Step \d+:|\Z)")
_STEP_CALL = re.compile(r"(?s)<(search|python)>(.*?)</\1>")
_STEP_RESULT = re.compile(r"(?s)<result>(.*?)</result>")


def role_of(model: str, conversation: Conversation) -> Role:
    """Return the role that a model name ends in; else guess it from the system prompt; else the policy."""
    for role in ("gullible-judge", "judge", "refiner", "summarizer"):
        if model.endswith(f"-{role}"):
            return role
    system = conversation.system.lower()
    if "<search>" in system or "<python>" in system:
        return "policy"
    if re.search(r"\b(?:judge|verifier|grader)\b", system):
        return "judge"
    return "summarizer" if re.search(r"\bsummari[sz]", system) else "policy"


def judge(text: str, *, gullible: bool) -> str:
    """Compare the gold with the predicted answer of a judge prompt: Correct, Incorrect, or Unclear without the two.

    The gullible judge obeys any verdict or order that stands outside delimited data (`<tag>…</tag>` or fences).
    """
    if gullible:
        orders = list(_ORDER.finditer(_DELIMITED.sub(" ", text)))
        if orders:
            return (orders[-1]["a"] or orders[-1]["b"]).capitalize()
    gold = _first(_GOLD_TAG, text, 2) or _first(_GOLD, text, 1)
    predicted = _first(_PREDICTED_TAG, text, 2) or _first(_PREDICTED, text, 1)
    if gold is None or predicted is None:
        return "Unclear"
    accepted = {_fold(part) for part in re.split(r"[;|\n]|\", *\"|', *'", gold)}
    return "Correct" if _fold(predicted) and _fold(predicted) in accepted else "Incorrect"


def _first(pattern: re.Pattern[str], text: str, group: int) -> str | None:
    match = pattern.search(text)
    return match[group].strip() if match else None


def _fold(answer: str) -> str:
    boxed = re.search(r"\\boxed\{(.*)\}", answer)
    words = re.sub(r"[^\w\s.\-]", "", (boxed[1] if boxed else answer).lower()).split()
    return " ".join(word.rstrip(".") for word in words if word not in ("a", "an", "the"))


def refine(text: str) -> str:
    """Name the first step that repeats an earlier call (`Step: n` with a correction), or the first failed one.

    Reads steps rendered as `#### Step i: …`. Asked about redundancy, it answers `Step: no` where there is none; asked
    for a flaw, it names the first step with an empty or failed result, else the last.
    """
    steps = [(int(match[1]), match[2].strip()) for match in _STEP.finditer(text)]
    if not steps:
        return "Step: no"
    if "redundan" in text.lower():
        return _find_repeated(steps)
    number = next((number for number, step in steps if _failed(step)), steps[-1][0])
    return f"Step: {number}\nAnalysis: This step does not get what the question asks for; look it up again."


def _find_repeated(steps: list[tuple[int, str]]) -> str:
    seen: set[tuple[str, str]] = set()
    for number, step in steps:
        call = _STEP_CALL.search(step)
        key = (call[1], " ".join(call[2].split())) if call else None
        if key is not None and key in seen:
            return (
                f"Step: {number}\nAnalysis: The call asks again what an earlier one asked.\n"
                "Corrected Step: <think>I already have what I need from the earlier results.</think>"
            )
        if key is not None:
            seen.add(key)
    return "Step: no"


def _failed(step: str) -> bool:
    result = _STEP_RESULT.search(step)
    return result is not None and (not result[1].strip() or "Traceback" in result[1] or "Error" in result[1])


def summarize(text: str) -> str:
    """Return the two sentences of the prompt's last paragraphs that share most words with its query line."""
    query = re.search(r"(?im)^\W*(?:current )?(?:search )?query\W*:?\W*(.*)$", text)
    wanted = set(re.findall(r"\w{3,}", (query[1] if query else text[:200]).lower()))
    body = text[query.end() :] if query else text
    sentences = [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", body) if len(part.split()) > 3]
    ranked = sorted(range(len(sentences)), key=lambda place: (-_overlap(sentences[place], wanted), place))
    return "**Final Information**\n" + " ".join(sentences[place] for place in sorted(ranked[:2]))


def _overlap(sentence: str, wanted: set[str]) -> int:
    return len(wanted & set(re.findall(r"\w{3,}", sentence.lower())))
