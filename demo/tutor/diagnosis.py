"""Diagnose trajectories of the sample world: parse the steps, and find the first one with a flaw.

The question determines what to look up and compute, and the results so far what is known. From both, the rules of the
strong policy derive the right step. No gold answer is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from treadle.demo.tutor.conversation import Call, Conversation, read_calls
from treadle.demo.tutor.policy import STRONG, boxed, next_facts, plan
from treadle.demo.tutor.seeded_draws import Draws
from treadle.demo.world_templates import recognise

FlawKind = Literal["redundant", "broken", "idle", "early", "wrong", "unfinished", "wordy"]

_HEADED = re.compile(r"(?ms)^#### Step (\d+): ?(.*?)(?=^#### Step \d+:|\Z)")
_THOUGHT = re.compile(r"(?s)<think>(.*?)</think>")
_ANSWER = re.compile(r"(?s)<answer>(.*?)(?:</answer>|\Z)")
_PROGRAM_FAILED = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b|Traceback|(?i:timed? ?out|invalid program)")
_SEARCH_FAILED = re.compile(r"(?i)(?:the search |no documents |no results|invalid query)")
_QUESTION = re.compile(r"(?is)<(question\w*)>\s*(.*?)\s*</\1>")
_QUESTION_LINE = re.compile(r"(?im)^\W*question\W*:\s*(\S[^\n]*)$")
_MAX_THOUGHT_CHARS = 240

REASONS: dict[FlawKind, str] = {
    "redundant": "the call asks for what the earlier results already say",
    "broken": "the call brings nothing: it is empty or cannot run; it has to be made properly",
    "idle": "the call does not ask for what is needed next and brings nothing new",
    "early": "it answers before everything that the question needs was found out; a call is missing",
    "wrong": "what it works out or reads is not what the question asks for",
    "unfinished": "it ends without a call or an answer",
    "wordy": "the thought says again what was said before and can be left out",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A numbered step of a prompt, with its calls."""

    number: int
    text: str
    calls: tuple[Call, ...]

    @property
    def thought(self) -> str:
        """Text of all think blocks."""
        return " ".join(found.strip() for found in _THOUGHT.findall(self.text))


@dataclass(frozen=True, slots=True)
class Flaw:
    """A flawed step, the kind of flaw, and the thought and action that would be right instead."""

    step: Step
    kind: FlawKind
    thought: str
    action: str


def read_steps(text: str) -> list[Step]:
    """Return the steps of a prompt, each under its heading `#### Step i:`."""
    found = ((int(match[1]), match[2].strip()) for match in _HEADED.finditer(text))
    return [Step(number, step, read_calls(step)) for number, step in found]


def read_question(text: str) -> str:
    """Return the question of a prompt: in tags, after `Question:`, else the first sample world question."""
    match = _QUESTION.search(text)
    if match:
        return match[2]
    match = _QUESTION_LINE.search(text)
    if match:
        return match[1].strip()
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if recognise(line) is not None), "")


def right_turn(question: str, before: Sequence[Step], draws: Draws) -> tuple[str, str]:
    """Return the thought and action of the strong policy after these steps."""
    calls = tuple(call for step in before for call in step.calls)
    return plan(Conversation("", question, calls), STRONG, draws)


def first_error(question: str, steps: Sequence[Step], draws: Draws) -> Flaw | None:
    """Return the first step that is wrong, broken, redundant or missing something."""
    return next((flaw for flaw in _flaws(question, steps, draws) if flaw.kind != "wordy"), None)


def first_redundancy(question: str, steps: Sequence[Step], draws: Draws) -> Flaw | None:
    """Return the first step with an unnecessary call or thought; a call without a useful result is unnecessary too."""
    return next((flaw for flaw in _flaws(question, steps, draws) if flaw.step.calls or flaw.kind == "wordy"), None)


def _flaws(question: str, steps: Sequence[Step], draws: Draws) -> Iterator[Flaw]:
    """Yield the flaws in the order of their steps, at most one per step."""
    for place, step in enumerate(steps):
        thought, action = right_turn(question, steps[:place], draws)
        kind = _kind(question, step, steps[:place], action)
        if kind is not None:
            yield Flaw(step, kind, thought, action)


def flaw_at(question: str, steps: Sequence[Step], draws: Draws) -> Flaw:
    """Return the last step as a flaw; its kind is `wrong` if the step has no flaw, or only too long a thought."""
    thought, action = right_turn(question, steps[:-1], draws)
    kind = _kind(question, steps[-1], steps[:-1], action)
    return Flaw(steps[-1], kind if kind and kind != "wordy" else "wrong", thought, action)


def is_broken(call: Call) -> bool:
    """Return whether a call is empty, or its result is empty or an error."""
    if not call.argument or call.result == "":
        return True
    if call.tool == "python":
        return bool(_PROGRAM_FAILED.search(call.result or ""))
    return bool(_SEARCH_FAILED.match(call.result or ""))


def _kind(question: str, step: Step, before: Sequence[Step], right: str) -> FlawKind | None:
    kind = _kind_of_call(question, step, before, right) if step.calls else _kind_of_answer(step.text, right)
    wordy = len(step.thought) > _MAX_THOUGHT_CHARS or boxed(step.thought) is not None
    return kind or ("wordy" if wordy else None)


def _kind_of_call(question: str, step: Step, before: Sequence[Step], right: str) -> FlawKind | None:
    call = step.calls[-1]
    earlier = [other for previous in before for other in previous.calls]
    if is_broken(call):
        return "broken"
    if any((call.tool, _plain(call.argument)) == (other.tool, _plain(other.argument)) for other in earlier):
        return "redundant"
    if recognise(question) is None:
        return None
    if right.startswith("<answer>"):
        return "redundant"
    (wanted,) = read_calls(right)
    if call.tool != wanted.tool:
        return "redundant" if call.tool == "search" else "early"
    if call.tool == "python":
        return None if _essence(wanted.argument) in _plain(call.argument) else "wrong"
    return "idle" if next_facts(question, earlier) == next_facts(question, [*earlier, call]) else None


def _kind_of_answer(text: str, right: str) -> FlawKind | None:
    answer = _ANSWER.search(text)
    if answer is None:
        return "unfinished"
    if not right.startswith("<answer>"):
        return "early"
    return None if _fold(boxed(answer[1])) == _fold(boxed(right)) else "wrong"


def _essence(program: str) -> str:
    """Return the computation in one of the strong policy's programs."""
    line = _plain(program.split("\n")[0])
    return line.removeprefix("print(").removesuffix(")") if line.startswith("print(") else line.partition("=")[2]


def _plain(text: str) -> str:
    return "".join(text.split())


def _fold(value: str | None) -> str:
    return re.sub(r"[\s,]", "", (value or "").lower())
