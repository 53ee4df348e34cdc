"""The judge that asks a model: one word or nothing. See docs/behaviour/judges.md."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from treadle.agent.judges.base import Case, Verdict
from treadle.agent.judges.prompt_files import prompt_template, prompt_text
from treadle.agent.judges.replies import closing_block, said_word
from treadle.agent.judges.rules import case_digest
from treadle.agent.judges.views import MAX_GOLD_CHARS, MAX_QUESTION_CHARS, View, answer_view
from treadle.agent.memory import Memory
from treadle.agent.role import Reply, RoleModel
from treadle.agent.rollout import derive_seed
from treadle.core.config import digest_json
from treadle.core.errors import ContextTooLong
from treadle.core.harmless import one_line

PROTOCOL_VERSION = 2
"""Raised when views or the reading of replies change."""

MAX_PREDICTION_CHARS = 2_000
"""What is longer is no answer but an essay, and wrong without being shown to the model."""

MAX_ASKS = 2
"""The second one only where the first reply cannot be read."""


class ModelJudge:
    """Asks a model whether a predicted answer agrees with the gold answers; it sees nothing else.

    A reply that is not the one word makes one more ask, with another seed and another nonce; after that the verdict is
    unknown. An answer that was judged before, in the same memory, is not judged again.
    """

    def __init__(self, model: RoleModel) -> None:
        self._model = model
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> ModelJudge:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    def digest(self) -> str:
        """Of prompts, views and bounds; the model and its sampling are their owner's to name."""
        return model_judge_digest()

    async def verdict(self, case: Case, memory: Memory) -> Verdict:
        """See `Judge`."""
        if not case.answered:
            return Verdict(False, 0.0, "status")
        if not case.prediction.strip():
            return Verdict(False, 0.0, "empty")
        if len(case.prediction) > MAX_PREDICTION_CHARS:
            return Verdict(False, 0.0, "too_long")
        digest = case_digest(case, f"{self._model.name} {self.digest()}")
        # Two trajectories of a question may bring the same answer at once: the second finds it in the memory.
        lock = self._busy.setdefault(f"{case.session} {digest}", asyncio.Lock())
        async with lock:
            return await self._ask(case, memory, digest)

    async def _ask(self, case: Case, memory: Memory, digest: str) -> Verdict:
        replies: list[Reply] = []
        correct = error = None
        while correct is None and len(replies) < MAX_ASKS:
            number = len(replies)
            seed = derive_seed(case.seed, "verdict", digest, number)
            try:
                reply = await self._model.ask(
                    correctness_messages(answer_view(case, seed)),
                    memory=memory,
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
            error = f"the judge said neither Correct nor Incorrect but {one_line(replies[-1].text)[:80]!r}"
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
    """Whether the reply is the word Correct or Incorrect; None if it is anything else, or was cut off.

    Of a reply that ends with `<judgment>…</judgment>`, as the published prompt has it, what stands in there counts.
    Letter case, white space, quotes and emphasis around the word do not matter, nor do thoughts that end in `</think>`.
    """
    if reply.cut:
        return None
    word = said_word(closing_block(reply.text, "judgment"), ("correct", "incorrect"))
    return None if word is None else word == "correct"


def correctness_messages(view: View) -> list[dict[str, str]]:
    """What the model is asked about an answer."""
    user = prompt_template("correctness.jinja").render(nonce=view.nonce, view=view.text).rstrip("\n")
    return [{"role": "system", "content": prompt_text("correctness_system.txt")}, {"role": "user", "content": user}]


def model_judge_digest() -> str:
    """Of all that decides a verdict beside the model itself."""
    texts = [prompt_text("correctness_system.txt"), prompt_text("correctness.jinja")]
    return digest_json([PROTOCOL_VERSION, MAX_QUESTION_CHARS, MAX_GOLD_CHARS, MAX_PREDICTION_CHARS, *texts])
