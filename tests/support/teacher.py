"""A teacher that rewrites the transcript in its prompt, with faults by the name of the question."""

from __future__ import annotations

import re
from collections.abc import Callable

from support.servers.scripted_server import RecordedRequest

_OBSERVATION = re.compile(r"<observation>\n(.*?)\n</observation>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_QUESTION = re.compile(r"The question: (.*)\n")

FAULTS: dict[str, Callable[[str], str]] = {
    "changed": lambda text: text.replace("Doc 1", "Doc  1", 1),
    "unplanned": lambda text: re.sub("<plan>.*?</plan>", "", text, flags=re.DOTALL),
    "early": lambda text: text.replace("T1, T2", "none").replace(
        "task 1\n- Dependencies: none", "task 1\n- Dependencies: T2"
    ),
    "talkative": lambda text: f"Here it is: {text}",
    "long": lambda text: text.replace("<think>", "<think>" + "very long " * 1200, 1),
}


def question_of(request: RecordedRequest) -> str:
    """Return the question that a request is about; empty for those of the preflight."""
    found = _QUESTION.search(request.text)
    return found[1] if found else ""


def rewrite(request: RecordedRequest) -> str:
    """Return the rewrite: all searches but the last at once, unless the question begins with `chain`."""
    question = question_of(request)
    if not question:
        return "yes"
    transcript = request.text.rpartition("The transcript to rewrite:")[2]
    found, answer = _OBSERVATION.findall(transcript), _ANSWER.findall(transcript)[-1]
    last = len(found)
    needs = {number: "none" for number in range(1, last)} | {last: ", ".join(f"T{n}" for n in range(1, last))}
    batches = [list(range(1, last)), [last]]
    if question.startswith("chain"):
        needs = {number: f"T{number - 1}" if number > 1 else "none" for number in range(1, last + 1)}
        batches = [[number] for number in range(1, last + 1)]
    plan = "\n".join(f"T{number}: task {number}\n- Dependencies: {needs[number]}" for number in range(1, last + 1))
    parts = [f"<think>plan</think>\n<plan>\n{plan}\n</plan>"]
    for place, batch in enumerate(batches):
        parts += ["<think>next</think>"] * bool(place)
        parts.append(f"<wiki_search>{' | '.join(f'T{n}: query {n}' for n in batch)}</wiki_search>")
        parts += [f"<observation>\n{found[n - 1]}\n</observation>" for n in batch]
    text = "\n".join([*parts, "<think>done</think>", f"<answer>{answer}</answer>"])
    fault = next((change for name, change in FAULTS.items() if question.startswith(name)), lambda text: text)
    return fault(text)
