"""Detect role and task of a prompt, and play judge and summarizer by rule, in the formats of docs/behaviour/demo.md.

Tasks are recognized by a few plain words, because users may replace the prompt files.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from treadle.demo.tutor.conversation import Conversation
from treadle.demo.tutor.dialogue import dialogue_role
from treadle.demo.tutor.ledger.errands import read_errands
from treadle.demo.tutor.planning import planning_role

Role = Literal[
    "policy", "planner", "sequential", "asker", "guesser", "human", "judge", "gullible-judge", "critic", "refiner",
    "summarizer", "clerk", "explorer", "task-writer", "grader", "attributor", "lesson-writer", "lesson-checker",
    "page-writer", "page-guesser", "page-human",
]  # fmt: skip
Task = Literal["redundancy", "locate", "analyse", "replace", "reflect", "thoughts"]
"""Tasks that the stages which edit trajectories give to critic and refiner."""

_SUFFIXES: tuple[Role, ...] = (
    "page-writer", "page-guesser", "page-human",
    "gullible-judge", "judge", "critic", "refiner", "summarizer", "planner", "sequential", "asker", "guesser",
    "human", "clerk", "explorer", "task-writer", "grader", "attributor", "lesson-writer", "lesson-checker",
)  # fmt: skip
_GOLD = re.compile(r"(?im)^\W*(?:gold|reference|correct|expected|ground[- ]truth)[^:\n]{0,30}:\W*(.*)$")
_PREDICTED = re.compile(
    r"(?im)^\W*(?:pred|model|response|candidate|student|given answer|final answer)[^:\n]{0,30}:\W*(.*)$"
)
_GOLD_TAG = re.compile(r"(?is)<(gold\w*|reference\w*|correct_answer)>(.*?)</\1>")
_PREDICTED_TAG = re.compile(r"(?is)<(pred\w*|response|candidate\w*)>(.*?)</\1>")
_ANSWER_TAG = re.compile(r"(?is).*<(answer\w*)>(.*?)</\1>")
_CALL_TAG = re.compile(r"(?is)<((?:search|python)\w*(?:-\w+)?)>(.*?)</\1>")
_DELIMITED = re.compile(r"(?is)<(\w+)>.*?</\1>|```.*?```")
_ORDER = re.compile(
    r"(?is)(?:verdict|grade|judg(?:e?ment)?)\s*(?:is|:|=)\s*\W*(?P<a>correct|incorrect)\b"
    r"|(?:reply|answer|output|respond|say|print)\s+(?:only\s+)?(?:with\s+)?\W*(?P<b>correct|incorrect)\b(?!\s+or\b)"
)

_CUES: tuple[tuple[Task, str], ...] = (
    ("redundancy", r"(?=.*redundan)(?=.*corrected step)"),
    ("replace", r"(?=.*\blast step\b)(?=.*(?:\breplac|\bnew (?:last )?step\b))"),
    ("analyse", r"(?=.*\b(?:flaw|mistake))(?=.*\blast step\b)"),
    ("locate", r"(?=.*\b(?:flaw|mistake))(?=.*\bfirst\b)(?=.*\bstep:)"),
    ("reflect", r"(?=.*\breflect)"),
    ("thoughts", r"(?=.*\bthoughts\b)(?=.*(?:\bedit|\bshorten|\bcondens|\bfewer words\b))"),
)
"""Tasks, each with a pattern that matches a prompt with all its cues; the first task whose pattern matches is used."""

_BEGUN = re.compile(r"(?is)\A\s*step:\s*\[?\d+\]?\s*analysis:")


def role_of(model: str, conversation: Conversation) -> Role:
    """Return the role in a model name's suffix; else guess it from the prompt; else the policy.

    Dialogues about programs and tasks of the ledger are recognized by their wordings. Otherwise the system message
    decides; if it sets no task, the instructions of a planning agent in the user's message decide.
    """
    for role in _SUFFIXES:
        if model.endswith(f"-{role}"):
            return role
    if (speaker := dialogue_role(conversation)) is not None:
        return speaker
    if read_errands(conversation.user):
        return "clerk"
    role = _role_in(conversation.system)
    return (planning_role(conversation) or role) if role == "policy" else role


@lru_cache(maxsize=64)
def _role_in(system: str) -> Role:
    if task_in(system) is not None:
        return "critic"
    low = system.lower()
    if "<search>" in low or "<python>" in low:
        return "policy"
    cue = re.search(r"\b(?:judge|verifier|grader)\b|\bwasted (?:tool )?calls\b", low)
    if cue or ("gold answer" in low and "predicted" in low):
        return "judge"
    return "summarizer" if re.search(r"\bsummari[sz]", low) else "policy"


def guess_task(conversation: Conversation) -> Task:
    """Return the task of a conversation; if no cue matches, guess the most likely task."""
    task = task_in(conversation.system) or task_in(conversation.user[:4000])
    if task is not None:
        return task
    if _BEGUN.match(conversation.turn):
        return "analyse"
    return "redundancy" if "redundan" in f"{conversation.system}{conversation.user}".lower() else "locate"


@lru_cache(maxsize=64)
def task_in(text: str) -> Task | None:
    """Return the first task whose cues occur in a text, or None."""
    low = text.lower()
    return next((task for task, cues in _CUES if re.match(cues, low, re.DOTALL)), None)


def judge(text: str, *, gullible: bool) -> str:
    """Judge the predicted answer in a judge prompt: Correct, Incorrect, or Unclear without gold or prediction.

    The gullible judge obeys any verdict or instruction outside delimited data (`<tag>…</tag>` or fences). If the last
    line asks about redundant calls, the judge votes: yes if two calls are the same.
    """
    if "redundant" in text.rstrip().rpartition("\n")[2]:
        calls = [_fold(match[2]) for match in _CALL_TAG.finditer(text)]
        return f"<answer>{'yes' if len(set(calls)) < len(calls) else 'no'}</answer>"
    if gullible:
        orders = list(_ORDER.finditer(_DELIMITED.sub(" ", text)))
        if orders:
            return (orders[-1]["a"] or orders[-1]["b"]).capitalize()
    gold = _first(_GOLD_TAG, text, 2) or _first(_GOLD, text, 1)
    predicted = _first(_PREDICTED_TAG, text, 2) or _first(_ANSWER_TAG, text, 2) or _first(_PREDICTED, text, 1)
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


def summarize(text: str) -> str:
    """Return the two sentences after the prompt's query line that share most words with it."""
    query = re.search(r"(?im)^\W*(?:current )?(?:search )?query\W*:?\W*(.*)$", text)
    wanted = set(re.findall(r"\w{3,}", (query[1] if query else text[:200]).lower()))
    body = text[query.end() :] if query else text
    sentences = [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", body) if len(part.split()) > 3]
    ranked = sorted(range(len(sentences)), key=lambda place: (-_overlap(sentences[place], wanted), place))
    return "**Final Information**\n" + " ".join(sentences[place] for place in sorted(ranked[:2]))


def _overlap(sentence: str, wanted: set[str]) -> int:
    return len(wanted & set(re.findall(r"\w{3,}", sentence.lower())))
