"""Grade answers or trajectories against a rubric of the user, without gold answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from treadle.agent.judges.base import Grade, Judge
from treadle.agent.judges.prompt_files import prompt_template, prompt_text
from treadle.agent.judges.replies import final_block
from treadle.agent.judges.views import View

_GRADE = re.compile(r"\s*(0(?:\.\d+)?|1(?:\.0+)?)\s*")


class Rubric(Judge):
    """Grade an answer or a whole trajectory from 0 to 1 against a rubric. Tasks need no gold answers."""

    PARTS: ClassVar[Mapping[str, str]] = {"rubric": "grade against the rubric"}
    UNASKED: ClassVar[frozenset[str]] = frozenset({"threshold"})

    type: str = "rubric"
    """Grades by a rubric."""
    threshold: float = Field(default=0.5, gt=0.0, le=1.0)
    """Grade from which an answer counts as right."""

    def messages(self, view: View) -> list[dict[str, str]]:
        """Return the messages that ask for a grade."""
        system = self.instructions(prompt_text("rubric_system.txt"))
        user = prompt_template("rubric.jinja").render(nonce=view.nonce, view=view.text).rstrip("\n")
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    def read(self, text: str) -> Grade | None:
        """Return the number in the block `<grade>` that ends the reply, or that is the whole reply."""
        match = _GRADE.fullmatch(final_block(text, "grade"))
        return None if match is None else Grade(float(match[1]), {"rubric": float(match[1])})

    def is_correct(self, grade: float) -> bool:
        """Return whether a grade reaches the threshold."""
        return grade >= self.threshold

    @model_validator(mode="after")
    def _check_rubric(self) -> Self:
        if self.models and not self.rubric_text:
            raise ValueError('rubric is needed: text, or a file such as rubric = "rubric.txt"')
        return self
