"""Ask the teacher for rewrites of one trajectory until one follows all rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from treadle.agent.call_cache import CallCache
from treadle.agent.role import Reply, RoleModel
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ContextTooLong, DeadlineExceeded
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import timed_work
from treadle.datagen.conversion.rewrites import Rewrite, RewriteRefused, checked_rewrite
from treadle.datagen.conversion.rows import accepted, refused
from treadle.datagen.conversion.settings import ConversionOptions
from treadle.datagen.conversion.sources import ConversionSource
from treadle.datagen.prompts import CONVERT, PromptSet
from treadle.environments.planning.dialect import PlanningDialect


@dataclass(frozen=True, slots=True)
class Teacher:
    """The model that rewrites, with the rules that its rewrites must follow.

    Attributes:
        model: Model in the role of the teacher.
        dialect: Dialect of the rewrites.
        tokenizer: Counts the tokens of rewrites; None for no count and no limit.
        seed: Seed of the run.
    """

    model: RoleModel
    options: ConversionOptions
    dialect: PlanningDialect
    prompts: PromptSet
    tokenizer: ChatTokenizer | None
    seed: int

    async def rewrite(self, source: ConversionSource, cache: CallCache) -> dict[str, Any]:
        """Return the columns of the first rewrite that follows all rules, or else columns with the last failure.

        Each reply is stored in `cache` before it is used.
        """
        with timed_work() as clock:
            return await self._first_accepted(source, cache, clock.time() + self.options.rewrite_time_s)

    async def _first_accepted(self, source: ConversionSource, cache: CallCache, deadline: float) -> dict[str, Any]:
        stored: dict[str, Any] = {}
        usage = Counter[str]()
        for number in range(self.options.attempts):
            try:
                reply = await self._ask(source, number, cache, deadline)
            except ContextTooLong:
                return refused(
                    stored, "prompt_too_long", "the transcript does not fit into the teacher's window", usage
                )
            except DeadlineExceeded:
                return refused(stored, "timeout", "the time of the trajectory is over", usage)
            usage.update(num_attempts=1, prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens)
            try:
                made, num_tokens = self._checked(reply, source)
            except RewriteRefused as error:
                stored = refused({"reply": reply.text}, error.reason, error.detail, usage)
            else:
                return accepted(made, num_tokens, usage)
        return stored

    async def _ask(self, source: ConversionSource, number: int, cache: CallCache, deadline: float) -> Reply:
        values = {
            "call": self.dialect.splitting[0],
            "question": source.task.user_message,
            "transcript": source.whole.text,
        }
        return await self.model.ask(
            self.prompts.messages(CONVERT[0], values),
            cache=cache,
            unit=f"ask-{number}",
            seed=derive_seed(self.seed, "conversion", source.whole.key, number),
            session=source.whole.key,
            deadline=deadline,
        )

    def _checked(self, reply: Reply, source: ConversionSource) -> tuple[Rewrite, int]:
        """Return the rewrite and its number of tokens; raise RewriteRefused if it breaks a rule."""
        assert source.facts is not None
        options = self.options
        if reply.is_truncated:
            raise RewriteRefused("reply_truncated")
        made = checked_rewrite(reply.text, source.facts, self.dialect)
        if made.num_searches < options.min_searches:
            raise RewriteRefused("too_few_searches", f"{made.num_searches} queries, at least {options.min_searches}")
        num_tokens = len(self.tokenizer.encode(made.text)) if self.tokenizer is not None else 0
        if options.max_tokens is not None and num_tokens > options.max_tokens:
            raise RewriteRefused("too_long", f"{num_tokens:,} tokens, at most {options.max_tokens:,}")
        return made, num_tokens
