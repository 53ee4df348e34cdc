"""Play critic and refiner by rule: find the flaw, explain it, rewrite the step, shorten a thought.

Both derive the right step from the question and the results (`diagnosis`), and reply in the formats of
datagen/prompts. The noisy persona is careless in a share of its replies: it overlooks the flaw, names another step as
the flawed one, or ignores the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from treadle.demo.tutor.conversation import Conversation, read_calls
from treadle.demo.tutor.diagnosis import (
    REASONS,
    Flaw,
    Step,
    first_error,
    first_redundancy,
    flaw_at,
    read_question,
    read_steps,
)
from treadle.demo.tutor.policy import ErrorRates
from treadle.demo.tutor.roles import Task
from treadle.demo.tutor.seeded_draws import Draws

_BLOCK = re.compile(r"(?s)<(search|python|answer)>.*?</\1>")
_LABELLED = re.compile(r"(?i)analysis:")
_THOUGHT = re.compile(r"(?s)<think>(.*?)</think>")
_TRAJECTORY = re.compile(r"(?is)<(trajectory\w*|attempt\w*)>\s*(.*)</\1>")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_HESITATION = re.compile(r"(?i)^(?:wait|hold on|hmm|actually|let me (?:stop|think|check|rethink)|to be sure|no, i)\b")
_LEAN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), lean)
    for pattern, lean in (
        (r"^(?:I need|First I look up|I have to find) the (.+) of (\w+)\.$", r"Find the \1 of \2."),
        (r"^What is the (.+) of (\w+)\? I search for it\.$", r"Find the \1 of \2."),
        (r"^(?:I compute|I let Python work out|So I need the value of) (.+)\.$", r"Now \1."),
        (r"^This is (.+)\.$", r"Now \1."),
        (r"^(?:The document says|The search gives|I found) (.+)\.$", r"So it is \1."),
        (r"^I compare (.+) and (.+)\.$", r"\1 or \2."),
        (r"^(?:The program gives the number|That is the result|Now I have the value)\.$", "That is it."),
    )
)


def reply_to_task(task: Task, conversation: Conversation, rates: ErrorRates, draws: Draws) -> str:
    """Return the reply to a task."""
    careless = draws.happens("careless", rates.careless)
    if task == "thoughts":
        return _lean_thought(conversation, careless=careless)
    if task == "reflect":
        return _reflection(conversation, careless=careless)
    steps = read_steps(conversation.user)
    if not steps:
        return "Step: no" if task == "redundancy" else "There are no steps to look at."
    return _TASK_HANDLERS[task](conversation, steps, draws, careless)


def _find_redundancy(conversation: Conversation, steps: list[Step], draws: Draws, careless: bool) -> str:
    flaw = first_redundancy(read_question(conversation.user), steps, draws)
    if careless:
        return draws.choose("carelessly", ("Step: no", f"Step {steps[-1].number} could be shorter."))
    if flaw is None:
        return "Step: no"
    return f"Step: {flaw.step.number}\nAnalysis: {REASONS[flaw.kind]}.\nCorrected Step: {_corrected(flaw)}"


def _corrected(flaw: Flaw) -> str:
    """Return the step without its flaw; if only the thought is too long, its call or answer is kept."""
    block = _BLOCK.search(flaw.step.text) if flaw.kind == "wordy" else None
    if block is None:
        return f"<think>{flaw.thought}</think>{flaw.action}"
    return f"<think>{_shortened(flaw.step.thought)}</think>{block[0]}"


def _locate(conversation: Conversation, steps: list[Step], draws: Draws, careless: bool) -> str:
    flaw = first_error(read_question(conversation.user), steps, draws)
    number = flaw.step.number if flaw else steps[-1].number
    if careless:
        other = draws.choose("number", [step.number for step in steps] + [len(steps) + 1])
        return draws.choose("carelessly", (f"Step: {other}\nAnalysis: This looks odd.", "All steps look right to me."))
    return f"Step: {number}\nAnalysis: {_diagnosis(flaw)}"


def _analyse(conversation: Conversation, steps: list[Step], draws: Draws, careless: bool) -> str:
    flaw = flaw_at(read_question(conversation.user), steps, draws)
    said = "it could be better." if careless else f"{REASONS[flaw.kind]}. {_advice(flaw)}"
    if not _LABELLED.search(conversation.turn):
        return f"Step: {flaw.step.number}\nAnalysis: In this step, {said}"
    return said if conversation.turn[-1].isspace() else f" {said}"


def _replace(conversation: Conversation, steps: list[Step], draws: Draws, careless: bool) -> str:
    flaw = flaw_at(read_question(conversation.user), steps, draws)
    if careless:
        old = _BLOCK.search(steps[-1].text)
        return f"<think>I stay with it.</think>{old[0]}" if old else "I would do it again."
    return f"<think>{flaw.thought}</think>{flaw.action}"


_TASK_HANDLERS: Mapping[Task, Callable[[Conversation, list[Step], Draws, bool], str]] = {
    "redundancy": _find_redundancy,
    "locate": _locate,
    "analyse": _analyse,
    "replace": _replace,
}


def _diagnosis(flaw: Flaw | None) -> str:
    if flaw is None:
        return "I see no flaw up to here; the answer should be checked once more against the results."
    return f"In this step, {REASONS[flaw.kind]}. {_advice(flaw)}"


def _advice(flaw: Flaw) -> str:
    calls = read_calls(flaw.action)
    if not calls:
        return "All that is needed is known, so that the answer can be given from the results."
    what = "search for" if calls[0].tool == "search" else "run a program for"
    return f"Better {what} what comes next. {flaw.thought}"


def _lean_thought(conversation: Conversation, *, careless: bool) -> str:
    """Return a shorter version of the open turn's current thought, with the end of its block."""
    trajectory = _TRAJECTORY.search(conversation.user)
    thoughts = _THOUGHT.findall(trajectory[2] if trajectory else conversation.user)
    place = max(0, conversation.turn.count("<think>") - 1)
    thought = thoughts[place] if place < len(thoughts) else ""
    lean = f"{thought} {thought} I go on." if careless else _shortened(thought)
    opening = "" if conversation.thought is not None else "<think>"
    return f"{opening}{lean}</think>"


def _shortened(thought: str) -> str:
    """Return the last informative sentence in fewer words, never longer than the thought."""
    text = " ".join(thought.split())
    if len(text.split("? I search")) == 1:
        parts = [part for part in _SENTENCE_END.split(text) if "\\boxed" not in part and not _HESITATION.match(part)]
        text = parts[-1] if parts else text
    for pattern, lean in _LEAN:
        text = pattern.sub(lean, text, count=1)
    return text if len(text) <= len(thought) else thought


def _reflection(conversation: Conversation, *, careless: bool) -> str:
    space = " " if conversation.turn and not conversation.turn[-1].isspace() else ""
    if careless:
        return f"{space}I may have gone wrong somewhere."
    trajectory = _TRAJECTORY.search(conversation.user)
    text = trajectory[2] if trajectory else conversation.user
    steps = [Step(number, step, read_calls(step)) for number, step in enumerate(_split(text), 1)]
    flaw = first_error(read_question(conversation.user), steps, Draws("reflect", conversation.user)) if steps else None
    where = f"My step {flaw.step.number} has a flaw. " if flaw else ""
    return f"{space}{where}{_diagnosis(flaw)}"


def _split(trajectory: str) -> list[str]:
    parts = re.split(r"(?<=</result>)", trajectory)
    return [part.strip() for part in parts if part.strip()]
