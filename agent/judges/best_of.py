"""Choose one of several attempts at a question by a model, which is never shown a gold answer.

See docs/behaviour/judges.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.agent.call_cache import CallCache
from treadle.agent.judges.prompt_files import prompt_template, prompt_text
from treadle.agent.judges.replies import final_block, match_word
from treadle.agent.judges.views import (
    MAX_PREDICTION_CHARS,
    MAX_QUESTION_CHARS,
    SEGMENT_CHARS,
    SEGMENT_COUNTS,
    Attempt,
    View,
    attempt_views,
)
from treadle.agent.role import Reply, RoleModel
from treadle.core.config import digest_json
from treadle.core.errors import ContextTooLong
from treadle.core.seeds import derive_seed
from treadle.core.untrusted.sanitize import one_line

CHOICE_VERSION = 1
"""Version in the judge's digest; increment it if the views or the parsing of choices change."""

MAX_REQUESTS = 2
"""Most requests per question; the second one is sent only if the first reply is unreadable."""


@dataclass(frozen=True, slots=True)
class ChoiceCase:
    """Attempts from which the best one is chosen.

    Attributes:
        question: Text that the model was asked, options included.
        attempts: At least two trajectories, with their answers.
        seed: Seed in [0, 2**31), the same whenever these attempts are compared.
        session: Requests of one session go to one endpoint.
        deadline: Time of the work clock (`treadle.core.work_clock`).
    """

    question: str
    attempts: Sequence[Attempt]
    seed: int
    session: str
    deadline: float


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice of a judge model.

    Attributes:
        picked: Index of the chosen attempt in `ChoiceCase.attempts`; None if no reply could be read.
        raw: Unchanged replies of the judge model.
        error: Reason why no attempt is chosen.
        prompt_tokens, completion_tokens: Tokens of the judge model.
    """

    picked: int | None
    raw: tuple[str, ...]
    error: str | None
    prompt_tokens: int
    completion_tokens: int


class ChoiceJudge:
    """Judge that asks a model which attempt is best, with the attempts in an order drawn from the seed.

    If a reply cannot be read, the model is asked a second time, with another seed, nonce and order.
    """

    def __init__(self, model: RoleModel) -> None:
        self._model = model

    async def choose(self, case: ChoiceCase, cache: CallCache) -> Choice:
        """Return the choice; each reply is cached in `cache` as `choice-<n>` before it is used.

        Attempts that exceed the judge's window are shown with shorter segments, then with fewer. Raises ModelError if a
        request fails; the work then stays pending.
        """
        replies: list[Reply] = []
        for number in range(MAX_REQUESTS):
            seed = derive_seed(case.seed, "choice", number)
            order = shown_order(len(case.attempts), seed)
            try:
                reply = await self._reply(case, order, seed, cache, number)
            except ContextTooLong as failure:
                return _choice(None, replies, str(failure))
            replies.append(reply)
            place = None if reply.is_truncated else read_choice(reply.text, len(order))
            if place is not None:
                return _choice(order[place], replies, None)
        return _choice(None, replies, f"the judge replied with no choice, but {one_line(replies[-1].text)[:80]!r}")

    async def _reply(self, case: ChoiceCase, order: Sequence[int], seed: int, cache: CallCache, number: int) -> Reply:
        """Return one reply, to the longest view that fits into the window; raise ContextTooLong if none does."""
        views = attempt_views(case.question, [case.attempts[place] for place in order], seed)
        return await self._model.ask_first_fitting(
            (choice_messages(view, len(order)) for view in views),
            cache=cache,
            unit=f"choice-{number}",
            seed=seed,
            session=case.session,
            deadline=case.deadline,
        )


def shown_order(num_attempts: int, seed: int) -> list[int]:
    """Return the indices of the attempts in the order in which the model sees them."""
    order = list(range(num_attempts))
    random.Random(seed).shuffle(order)
    return order


def read_choice(text: str, num_attempts: int) -> int | None:
    """Return the index of the chosen attempt in the order shown, from 0; None if the reply is not a choice.

    The block `<choice>` that ends the reply counts, or the whole reply if it has none. It must consist of a number from
    1 on (see `match_word`).
    """
    numbers = tuple(str(number) for number in range(1, num_attempts + 1))
    inside = final_block(text, "choice").rpartition("</think>")[2]
    # Marks around a word do not matter, but a sign is part of a number: -1 is no choice.
    found = None if inside.strip().startswith("-") else match_word(inside, numbers)
    return None if found is None else int(found) - 1


def choice_messages(view: View, num_attempts: int) -> list[dict[str, str]]:
    """Return the messages that ask the model about attempts."""
    template = prompt_template("best_of.jinja")
    user = template.render(nonce=view.nonce, view=view.text, number=num_attempts).rstrip("\n")
    return [{"role": "system", "content": prompt_text("best_of_system.txt")}, {"role": "user", "content": user}]


def choice_judge_digest() -> str:
    """Return a digest of everything that affects a choice except the model and its input."""
    texts = [prompt_text("best_of_system.txt"), prompt_text("best_of.jinja")]
    return digest_json(
        [CHOICE_VERSION, MAX_QUESTION_CHARS, MAX_PREDICTION_CHARS, SEGMENT_CHARS, SEGMENT_COUNTS, *texts]
    )


def _choice(picked: int | None, replies: Sequence[Reply], error: str | None) -> Choice:
    return Choice(
        picked,
        tuple(reply.text for reply in replies),
        error,
        sum(reply.prompt_tokens for reply in replies),
        sum(reply.completion_tokens for reply in replies),
    )
