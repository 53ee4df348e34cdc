"""Judge whole trajectories for redundant or ineffective tool calls, by votes of a model.

See docs/behaviour/judges.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from treadle.agent.call_cache import CallCache
from treadle.agent.dialects.base import Segment
from treadle.agent.judges.prompt_files import prompt_template, prompt_text
from treadle.agent.judges.replies import match_word
from treadle.agent.judges.views import (
    MAX_GOLD_CHARS,
    MAX_QUESTION_CHARS,
    SEGMENT_CHARS,
    SEGMENT_COUNTS,
    View,
    trajectory_views,
)
from treadle.agent.role import Reply, RoleModel, parse_cached_reply
from treadle.core.config import digest_json
from treadle.core.errors import ContextTooLong
from treadle.core.seeds import derive_seed

VOTE_VERSION = 2
"""Version in the judge's digest; increment it if the views or the parsing of votes change."""

ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"


@dataclass(frozen=True, slots=True)
class VoteCase:
    """Trajectory to be voted on.

    Attributes:
        question: Text that the model was asked, options included.
        answers: Accepted gold answers.
        segments: All segments of the trajectory, results included.
        seed: Seed in [0, 2**31), the same whenever the trajectory is voted on.
        session: Requests of one session go to one endpoint.
        deadline: Time of the work clock (`treadle.core.work_clock`).
    """

    question: str
    answers: Sequence[str]
    segments: Sequence[Segment]
    seed: int
    session: str
    deadline: float


@dataclass(frozen=True, slots=True)
class Vote:
    """Votes on whether a trajectory has a redundant or ineffective call.

    Attributes:
        yes: Votes that there is one.
        no: Votes that there is none.
        abstained: Replies that are not a vote, plus votes that were not requested because of `error`.
        raw: Unchanged replies of the judge model.
        error: Reason why fewer votes were requested than configured.
        prompt_tokens: Prompt tokens of the judge model.
        completion_tokens: Sampled tokens of the judge model.
    """

    yes: int
    no: int
    abstained: int
    raw: tuple[str, ...]
    error: str | None
    prompt_tokens: int
    completion_tokens: int


class RedundancyJudge:
    """Judge that asks a model several times, each time with another seed, and counts the votes.

    A reply that is not a vote counts as an abstention; it is not asked for again.
    """

    def __init__(self, model: RoleModel, num_votes: int) -> None:
        self._model = model
        self._num_votes = num_votes

    async def vote(self, vote_case: VoteCase, cache: CallCache) -> Vote:
        """Return all votes on one trajectory; each is cached in `cache` as `vote-<n>` before it is used.

        A trajectory that exceeds the judge's window is shown with shorter segments, then with fewer. Raises ModelError
        if a request fails; the work then stays pending.
        """
        replies: list[Reply] = []
        # All votes use the first view that fits, so that a prefix cache on the server can reuse the prompt.
        views = trajectory_views(vote_case.question, vote_case.answers, vote_case.segments, vote_case.seed)
        messages = redundancy_messages(next(views))
        error = None
        while len(replies) < self._num_votes:
            number = len(replies)
            try:
                reply = await self._model.ask(
                    messages,
                    cache=cache,
                    unit=f"vote-{number}",
                    seed=derive_seed(vote_case.seed, "vote", number),
                    session=vote_case.session,
                    deadline=vote_case.deadline,
                )
            except ContextTooLong as failure:
                if (view := next(views, None)) is None:
                    error = str(failure)
                    break
                messages = redundancy_messages(view)
                continue
            replies.append(reply)
        return _count(replies, self._num_votes, error)


def cached_votes(cache: CallCache, num_votes: int) -> Vote | None:
    """Return the votes cached before the model became unavailable; None if there are none."""
    known = (cache.get(f"vote-{number}") for number in range(num_votes))
    replies = [parse_cached_reply(value) for value in takewhile(bool, known) if value is not None]
    if not replies:
        return None
    return _count(replies, num_votes, f"{num_votes - len(replies)} of {num_votes} votes could not be requested")


def _count(replies: Sequence[Reply], num_votes: int, error: str | None) -> Vote:
    votes = [read_vote(reply) for reply in replies]
    yes, no = votes.count(True), votes.count(False)
    return Vote(
        yes,
        no,
        num_votes - yes - no,
        tuple(reply.text for reply in replies),
        error,
        sum(reply.prompt_tokens for reply in replies),
        sum(reply.completion_tokens for reply in replies),
    )


def read_vote(reply: Reply) -> bool | None:
    """Return True for yes and False for no; None if the reply is not a vote.

    The last answer block counts, or the whole reply if it has none. It must consist of the one word (see `match_word`).
    A truncated reply is a vote only if its block is closed.
    """
    text = reply.text.rpartition("</think>")[2]
    _, opening, rest = text.rpartition(ANSWER_OPEN)
    inside, closing, _ = rest.partition(ANSWER_CLOSE)
    if reply.is_truncated and not (opening and closing):
        return None
    word = match_word(inside if opening else text, ("yes", "no"))
    return None if word is None else word == "yes"


def redundancy_messages(view: View) -> list[dict[str, str]]:
    """Return the messages that ask the model about a trajectory."""
    user = prompt_template("redundancy.jinja").render(nonce=view.nonce, view=view.text).rstrip("\n")
    return [{"role": "system", "content": prompt_text("redundancy_system.txt")}, {"role": "user", "content": user}]


def redundancy_judge_digest() -> str:
    """Return a digest of everything that affects a vote except the model and its input."""
    texts = [prompt_text("redundancy_system.txt"), prompt_text("redundancy.jinja")]
    return digest_json([VOTE_VERSION, MAX_QUESTION_CHARS, MAX_GOLD_CHARS, SEGMENT_CHARS, SEGMENT_COUNTS, *texts])
