"""Ask a model for the goal with which pages are read, and for what a page says about it.

Everything in the prompts is untrusted; see `treadle.agent.tools.summarizer`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from treadle.agent.call_cache import NullCache
from treadle.agent.prompts import render_prompt, system_prompt, template_source
from treadle.agent.role import Reply, RoleModel
from treadle.core.untrusted.lookalikes import sub_first
from treadle.core.untrusted.prompt_text import as_data
from treadle.web.pages.control_tokens import without_known_tokens, without_tokens

MAX_REASONING_CHARS = 8_000
"""Most characters of the reasoning in a prompt; of longer reasoning the end is kept."""
MAX_QUERY_CHARS = 2_000
_BLOCK_TAG = re.compile(r"<(?=\s*/?\s*(?:query|goal|page|reasoning)\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelText:
    """Text of a model and the tokens that it took."""

    text: str
    prompt_tokens: int
    completion_tokens: int


class PageSummarizer:
    """Model that reads pages."""

    def __init__(self, model: RoleModel, *, added_tokens: frozenset[str] = frozenset()) -> None:
        """Set up the model; `added_tokens` of its tokenizer, if known, are escaped in all untrusted text."""
        self._model = model
        self._added_tokens = added_tokens

    async def goal(self, reasoning: str, *, seed: int, deadline: float) -> ModelText:
        """Return the agent's reading goal, derived from its latest reasoning.

        `deadline` is a time of the work clock. Raises ModelError and DeadlineExceeded.
        """
        prompt = render_prompt("page_goal", reasoning=self._as_data(reasoning[-MAX_REASONING_CHARS:]))
        return await self._ask("page_goal_system", prompt, "page goal", seed, deadline)

    async def summary(self, page: str, query: str, goal: str, *, seed: int, deadline: float) -> ModelText:
        """Return what a page says about the query and the goal; empty if the model says nothing.

        `deadline` is a time of the work clock. Raises ModelError and DeadlineExceeded.
        """
        prompt = render_prompt(
            "page_summary",
            query=self._as_data(query[:MAX_QUERY_CHARS]) or "(none)",
            goal=self._as_data(goal) or "(none)",
            page=self._as_data(page),
        )
        return await self._ask("page_summary_system", prompt, "page summary", seed, deadline)

    async def _ask(self, system: str, prompt: str, unit: str, seed: int, deadline: float) -> ModelText:
        messages = [{"role": "system", "content": system_prompt(system)}, {"role": "user", "content": prompt}]
        # No session: these prompts share no prefix, so each goes to the least busy endpoint.
        reply = await self._model.ask(messages, cache=NullCache(), unit=unit, seed=seed, session="", deadline=deadline)
        return _text_of(reply)

    def _as_data(self, text: str) -> str:
        """Return text that can neither end its block nor spell a control token."""
        text = sub_first(_BLOCK_TAG, text, lambda _: "&lt;")
        return without_tokens(as_data(text), self._added_tokens).strip()


def page_prompts() -> list[str]:
    """Return the system prompts and templates that the prompts are made from, for digests."""
    names = ("page_goal", "page_summary")
    return [text for name in names for text in (system_prompt(f"{name}_system"), template_source(name))]


def _text_of(reply: Reply) -> ModelText:
    said = reply.text.rpartition("</think>")[2].strip()
    # The model may have copied a token spelling from the page, or decoded an escaped one.
    return ModelText(without_known_tokens(said), reply.prompt_tokens, reply.completion_tokens)
