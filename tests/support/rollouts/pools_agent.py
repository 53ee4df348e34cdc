"""A scripted model for all roles of the stage `pools`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.servers.scripted_server import Item, RecordedRequest, ScriptedServer
from support.tables.given_questions import TOKENIZER

WRONG = "<think>I guess.</think><answer>\\boxed{Rome}</answer>"
RIGHT = "<think>I know it, it is the capital.</think><answer>\\boxed{Paris}</answer>"


class Agent:
    """Plays all roles: each policy turn gets another text, and editors get what their prompts ask for.

    `answer` chooses the policy's text from the text of the request and its number among requests of its question.
    """

    def __init__(self, answer: Callable[[str, int], str]) -> None:
        self.answer = answer
        self.asked: Counter[str] = Counter()
        self.turns: Counter[str] = Counter()

    def __call__(self, request: RecordedRequest) -> Item:
        task = self.task_of(request)
        if task == "preflight":
            return "x"
        self.asked[task] += 1
        if task == "policy":
            question = request.text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
            self.turns[question] += 1
            return self.answer(request.text, self.turns[question])
        if task == "locate":
            return "Step: 1\nAnalysis:"
        if task == "redundancy":
            number = self.asked[task]
            step = f"<think>Said in fewer words, {number}.</think><answer>\\boxed{{Paris}}</answer>"
            return f"Step: 1\nAnalysis: wordy.\nCorrected Step: {step}"
        if task == "refine":
            return f"K{self.asked[task]}.</think>"
        if task == "replace":
            return f"<think>Now I see {self.asked[task]}.</think><answer>\\boxed{{Paris}}</answer>"
        return "The step guesses."

    @staticmethod
    def task_of(request: RecordedRequest) -> str:
        """Return the task of a request, inferred from its stop strings and its prompt."""
        stop = request.body.get("stop") or []
        if "Analysis:" in stop:
            return "locate"
        if "</think>" in stop:
            return "refine"
        if "#### Step" not in request.text:
            return "policy" if "</answer>" in stop else "preflight"
        if "Corrected Step:" in request.text:
            return "redundancy"
        return (
            "analyse"
            if request.text.rstrip().endswith("Analysis:") or "Analysis:" in request.text[-200:]
            else "replace"
        )


@contextmanager
def importable(folder: Path, name: str, source: str) -> Iterator[None]:
    (folder / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)


def server(script: Any, max_model_len: int = 32768) -> ScriptedServer:
    return ScriptedServer(script, codec=TOKENIZER, max_model_len=max_model_len)


def operators_of(rows: list[dict[str, Any]]) -> list[str]:
    return [row["operator"] for row in rows]
