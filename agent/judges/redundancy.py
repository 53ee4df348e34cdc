"""The judge that looks at a whole trajectory for wasted calls, and votes. See docs/behaviour/judges.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from treadle.agent.judges.prompt_files import prompt_template, prompt_text
from treadle.agent.judges.replies import said_word
from treadle.agent.judges.views import (
    MAX_GOLD_CHARS,
    MAX_QUESTION_CHARS,
    MAX_SEGMENT_CHARS,
    View,
    trajectory_view,
)
from treadle.agent.memory import Memory
from treadle.agent.protocol import Segment
from treadle.agent.role import Reply, RoleModel, remembered_reply
from treadle.agent.rollout import derive_seed
from treadle.core.config import digest_json
from treadle.core.errors import ContextTooLong

VOTE_VERSION = 2
"""Raised when views or the reading of votes change."""

SEGMENT_CHARS = (MAX_SEGMENT_CHARS, 1_000, 500, 250)
"""Most characters of each part of the trajectory; the next one where all of it together is too long for the judge."""

SEGMENT_COUNTS = (240, 80, 24)
"""Most parts of the trajectory that are shown, each with the fewest characters, where it is too long for all that."""

ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"


@dataclass(frozen=True, slots=True)
class Course:
    """One trajectory to be voted on.

    Attributes:
        question: As the model was asked it; options included.
        answers: Accepted gold answers.
        segments: All that the agent wrote and was told.
        seed: In [0, 2**31), the same whenever the trajectory is voted on.
        session: Requests with the same one stay on one endpoint.
        deadline: In the event loop's clock.
    """

    question: str
    answers: Sequence[str]
    segments: Sequence[Segment]
    seed: int
    session: str
    deadline: float


@dataclass(frozen=True, slots=True)
class Ballot:
    """The votes on one trajectory: is there a redundant or ineffective call?

    Attributes:
        abstained: Replies that are no vote, and votes that were not asked for because of `error`.
        raw: The judge's replies as they came.
        error: Why fewer votes were asked for than wanted.
    """

    yes: int
    no: int
    abstained: int
    raw: tuple[str, ...]
    error: str | None
    prompt_tokens: int
    completion_tokens: int


class RedundancyJudge:
    """Asks a model several times, with a seed for each vote, and counts. A reply that is no vote is not asked again."""

    def __init__(self, model: RoleModel, num_votes: int) -> None:
        self._model = model
        self._num_votes = num_votes

    async def vote(self, course: Course, memory: Memory) -> Ballot:
        """All votes on one trajectory; each is remembered in `memory` as `vote-<n>` before it is looked at.

        A trajectory that does not fit the judge's window is shown in shorter pieces, then in fewer. Raises ModelError
        where the model cannot be asked: the work is then owed.
        """
        replies: list[Reply] = []
        views = _views(course)
        messages = redundancy_messages(next(views))
        error = None
        while len(replies) < self._num_votes:
            number = len(replies)
            try:
                reply = await self._model.ask(
                    messages,
                    memory=memory,
                    unit=f"vote-{number}",
                    seed=derive_seed(course.seed, "vote", number),
                    session=course.session,
                    deadline=course.deadline,
                )
            except ContextTooLong as failure:
                if (view := next(views, None)) is None:
                    error = str(failure)
                    break
                messages = redundancy_messages(view)
                continue
            replies.append(reply)
        return _count(replies, self._num_votes, error)


def remembered_votes(memory: Memory, num_votes: int) -> Ballot | None:
    """The votes on a trajectory that were had before the others could not be; None where there is none."""
    known = (memory.get(f"vote-{number}") for number in range(num_votes))
    replies = [remembered_reply(value) for value in takewhile(bool, known) if value is not None]
    if not replies:
        return None
    return _count(replies, num_votes, f"{num_votes - len(replies)} of {num_votes} votes could not be asked for")


def _count(replies: Sequence[Reply], num_votes: int, error: str | None) -> Ballot:
    votes = [read_vote(reply) for reply in replies]
    yes, no = votes.count(True), votes.count(False)
    return Ballot(
        yes,
        no,
        num_votes - yes - no,
        tuple(reply.text for reply in replies),
        error,
        sum(reply.prompt_tokens for reply in replies),
        sum(reply.completion_tokens for reply in replies),
    )


def read_vote(reply: Reply) -> bool | None:
    """Whether the reply says yes; None if it is no vote.

    The last answer block counts, or the whole reply where it has none; it has to be the one word (see `said_word`). A
    reply that was cut off is a vote only if its block is closed.
    """
    text = reply.text.rpartition("</think>")[2]
    _, opening, rest = text.rpartition(ANSWER_OPEN)
    inside, closing, _ = rest.partition(ANSWER_CLOSE)
    if reply.cut and not (opening and closing):
        return None
    word = said_word(inside if opening else text, ("yes", "no"))
    return None if word is None else word == "yes"


def redundancy_messages(view: View) -> list[dict[str, str]]:
    """What the model is asked about a trajectory."""
    user = prompt_template("redundancy.jinja").render(nonce=view.nonce, view=view.text).rstrip("\n")
    return [{"role": "system", "content": prompt_text("redundancy_system.txt")}, {"role": "user", "content": user}]


def redundancy_judge_digest() -> str:
    """Of all that decides a vote beside the model itself and what it is shown."""
    texts = [prompt_text("redundancy_system.txt"), prompt_text("redundancy.jinja")]
    return digest_json([VOTE_VERSION, MAX_QUESTION_CHARS, MAX_GOLD_CHARS, SEGMENT_CHARS, SEGMENT_COUNTS, *texts])


def _views(course: Course) -> Iterator[View]:
    """Ever shorter ones. The same for all votes that it is short enough for: a cache of prompts reads it once."""
    sizes: list[tuple[int, int | None]] = [(chars, None) for chars in SEGMENT_CHARS]
    sizes += [(SEGMENT_CHARS[-1], count) for count in SEGMENT_COUNTS if count < len(course.segments)]
    for max_chars, max_segments in sizes:
        yield trajectory_view(
            course.question, course.answers, course.segments, course.seed, max_chars, max_segments=max_segments
        )
