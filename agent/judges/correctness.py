"""Judge whether an answer agrees with the gold answers, by a model that replies with one word."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator

from treadle.agent.judges.base import Judge
from treadle.agent.judges.prompt_files import prompt_template, prompt_text
from treadle.agent.judges.replies import final_block, match_word
from treadle.agent.judges.views import MAX_GOLD_CHARS, MAX_PREDICTION_CHARS, MAX_QUESTION_CHARS, View
from treadle.core.config import digest_json

CORRECTNESS_VERSION = 2
"""Version in the judge's digest; increment it if the views or the parsing of replies change."""


class Correctness(Judge):
    """Judge whether an answer agrees with the gold answers. A judged answer scores 1 or 0."""

    NEEDS_ANSWERS: ClassVar[bool] = True

    domains: tuple[str, ...] = ("math",)
    """Rules whose questions are judged, such as `math` or `qa`; empty: all of them but choices."""
    subject: Literal["answer"] = "answer"
    """What is judged."""

    @field_validator("domains")
    @classmethod
    def _check_domains(cls, domains: tuple[str, ...]) -> tuple[str, ...]:
        if "choice" in domains:
            raise ValueError("their rule decides about choices, no judge; leave out choice")
        return domains

    def messages(self, view: View) -> list[dict[str, str]]:
        """Return the messages that ask about an answer."""
        user = prompt_template("correctness.jinja").render(nonce=view.nonce, view=view.text).rstrip("\n")
        return [{"role": "system", "content": self._system()}, {"role": "user", "content": user}]

    def read(self, text: str) -> bool | None:
        """Return True for Correct and False for Incorrect; None if the reply is anything else.

        If a reply ends with `<judgment>…</judgment>`, as in the published prompt, only the content of that block
        counts. Letter case, white space, quotes and emphasis around the word do not matter, and reasoning up to
        `</think>` is ignored.
        """
        word = match_word(final_block(text, "judgment"), ("correct", "incorrect"))
        return None if word is None else word == "correct"

    def digest(self) -> str:
        """See `Judge.digest`."""
        if type(self) is not Correctness:
            return super().digest()  # A class of a user may read replies in another way.
        texts = [self._system(), prompt_text("correctness.jinja")]
        return digest_json([CORRECTNESS_VERSION, MAX_QUESTION_CHARS, MAX_GOLD_CHARS, MAX_PREDICTION_CHARS, *texts])

    def _system(self) -> str:
        return self.instructions(prompt_text("correctness_system.txt"))
