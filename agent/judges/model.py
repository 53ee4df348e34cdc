"""Judge answers with a model that replies with one word. See docs/behaviour/judges.md."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from treadle.agent.call_cache import CallCache
from treadle.agent.judges.base import Case, Verdict
from treadle.agent.judges.prompt_files import prompt_template, prompt_text
from treadle.agent.judges.replies import final_block, match_word
from treadle.agent.judges.rules import case_digest
from treadle.agent.judges.views import MAX_GOLD_CHARS, MAX_QUESTION_CHARS, View, answer_view
from treadle.agent.role import Reply, RoleModel
from treadle.core.config import digest_json
from treadle.core.errors import ContextTooLong
from treadle.core.seeds import derive_seed
from treadle.core.untrusted.sanitize import one_line

MODEL_JUDGE_VERSION = 2
"""Version in the judge's digest; increment it if the views or the parsing of replies change."""

MAX_PREDICTION_CHARS = 2_000
"""Longest prediction that the model is shown; a longer one counts as wrong."""

MAX_REQUESTS = 2
"""Most requests per case; the second one is sent only if the first reply is unreadable."""


class ModelJudge:
    """Judge that asks a model whether a predicted answer agrees with the gold answers; it is shown nothing else.

    If a reply is not one of the two words, the model is asked once more, with another seed and another nonce. If that
    reply is unreadable too, the verdict is unknown. An answer with a verdict in the same cache is not judged again.
    """

    def __init__(self, model: RoleModel) -> None:
        self._model = model
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> ModelJudge:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    def digest(self) -> str:
        """Return a digest of prompts, views and limits; model and sampling are excluded."""
        return model_judge_digest()

    async def verdict(self, case: Case, cache: CallCache) -> Verdict:
        """See `Judge`."""
        if not case.answered:
            return Verdict(False, 0.0, "status")
        if not case.prediction.strip():
            return Verdict(False, 0.0, "empty")
        if len(case.prediction) > MAX_PREDICTION_CHARS:
            return Verdict(False, 0.0, "too_long")
        digest = case_digest(case, f"{self._model.name} {self.digest()}")
        # Two trajectories of a question may have the same answer at the same time: the second one waits for the cached
        # reply.
        lock = self._busy.setdefault(f"{case.session} {digest}", asyncio.Lock())
        async with lock:
            return await self._ask(case, cache, digest)

    async def _ask(self, case: Case, cache: CallCache, digest: str) -> Verdict:
        replies: list[Reply] = []
        correct = error = None
        while correct is None and len(replies) < MAX_REQUESTS:
            number = len(replies)
            seed = derive_seed(case.seed, "verdict", digest, number)
            try:
                reply = await self._model.ask(
                    correctness_messages(answer_view(case, seed)),
                    cache=cache,
                    unit=f"verdict-{digest}/ask-{number}",
                    seed=seed,
                    session=case.session,
                    deadline=case.deadline,
                )
            except ContextTooLong as failure:
                error = str(failure)
                break
            replies.append(reply)
            correct = read_verdict(reply)
        if correct is None and error is None:
            error = f"the judge replied neither Correct nor Incorrect, but {one_line(replies[-1].text)[:80]!r}"
        return Verdict(
            correct,
            None if correct is None else float(correct),
            "model",
            tuple(reply.text for reply in replies),
            error,
            sum(reply.prompt_tokens for reply in replies),
            sum(reply.completion_tokens for reply in replies),
        )


def read_verdict(reply: Reply) -> bool | None:
    """Return True for Correct and False for Incorrect; None if the reply is anything else or was truncated.

    If a reply ends with `<judgment>…</judgment>`, as in the published prompt, only the content of that block counts.
    Letter case, white space, quotes and emphasis around the word do not matter, and reasoning up to `</think>` is
    ignored.
    """
    if reply.is_truncated:
        return None
    word = match_word(final_block(reply.text, "judgment"), ("correct", "incorrect"))
    return None if word is None else word == "correct"


def correctness_messages(view: View) -> list[dict[str, str]]:
    """Return the messages that ask the model about an answer."""
    user = prompt_template("correctness.jinja").render(nonce=view.nonce, view=view.text).rstrip("\n")
    return [{"role": "system", "content": prompt_text("correctness_system.txt")}, {"role": "user", "content": user}]


def model_judge_digest() -> str:
    """Return a digest of everything that affects a verdict except the model itself."""
    texts = [prompt_text("correctness_system.txt"), prompt_text("correctness.jinja")]
    return digest_json([MODEL_JUDGE_VERSION, MAX_QUESTION_CHARS, MAX_GOLD_CHARS, MAX_PREDICTION_CHARS, *texts])
