"""Read judgements back from the journal, as rows and verdicts, and copy those of earlier results into it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from treadle.agent.call_cache import JournalCache
from treadle.agent.judges.best_of import Choice
from treadle.agent.judges.cases import Verdict
from treadle.agent.judges.redundancy import Vote, cached_votes
from treadle.core.errors import ArtifactError
from treadle.core.runs.stage import StageContext
from treadle.core.tables import part_items
from treadle.eval.config import ScoresSettings
from treadle.eval.judge_identity import REDUNDANCY
from treadle.eval.judge_queue import Judgement, JudgeQueue
from treadle.eval.tables import JUDGEMENTS
from treadle.eval.verdicts import FAILED as UNREADABLE
from treadle.eval.verdicts import FALLBACK_RULE, PARSED, JudgeVerdict

_log = logging.getLogger(__name__)


class StoredJudgements:
    """Finished judgements of a stage instance, and votes of unfinished ones."""

    def __init__(self, context: StageContext, judge_queue: JudgeQueue) -> None:
        settings: ScoresSettings = context.settings
        self._context, self._journal, self._judge_queue = context, context.journal, judge_queue
        self._num_votes = settings.options.redundancy.votes

    def row(self, judgement: Judgement) -> dict[str, Any] | None:
        """Return the row of a judgement, or None if it is unfinished and has no stored votes.

        Stored votes count even if other votes on the trajectory are missing.
        """
        if self._journal.is_finished(judgement.key):
            said = orjson.loads(self._journal.finished(judgement.key))
        else:
            vote = self._votes_so_far(judgement)
            if vote is None:
                return None
            said = vote_fields(vote)
        if said["grade"] is not None:  # Which grades count as right may have changed since.
            said = {**said, "correct": self._judge_queue.judge.is_correct(said["grade"])}
        # The judge and the rollout may have had other names when the judgement was made.
        return {**_head(judgement), "picked": None, **said}

    def judge_verdict(self, judgement: Judgement) -> JudgeVerdict:
        """Return a judge's verdict on an answer."""
        row = self.row(judgement)
        if row is None:
            return JudgeVerdict(None, FALLBACK_RULE)
        status = PARSED if row["status"] == PARSED else UNREADABLE
        parts = {part["name"]: part["value"] for part in row["parts"]}
        return JudgeVerdict(row["correct"], status, tuple(row["replies"]), row["grade"], parts)

    def copy_finished(self, judgements: Iterable[Judgement]) -> None:
        """Copy finished judgements from the current result into the journal, to avoid paying for them again."""
        earlier = self._context.earlier(JUDGEMENTS.kind)
        wanted = {judgement.key for judgement in judgements} if earlier is not None else set()
        if earlier is None or not wanted:
            return
        try:
            for row in earlier.rows():
                if row["judgement_key"] in wanted and _is_final(row):
                    said = {name: value for name, value in row.items() if name not in _HEAD}
                    self._journal.finish(row["judgement_key"], orjson.dumps(said))
        except ArtifactError as error:
            _log.warning("earlier judgements cannot be read: %s", error)

    def _votes_so_far(self, judgement: Judgement) -> Vote | None:
        if not judgement.is_vote:
            return None
        return cached_votes(JournalCache(self._journal, judgement.key), self._num_votes)


def vote_fields(vote: Vote) -> dict[str, Any]:
    """Return the columns of a judgement that depend on the votes."""
    votes = {"votes_yes": vote.yes, "votes_no": vote.no, "votes_abstained": vote.abstained}
    return _said(vote, bool(vote.yes or vote.no), **votes)


def verdict_fields(prediction: str, verdict: Verdict) -> dict[str, Any]:
    """Return the columns of a judgement that depend on a judge's verdict."""
    facts = {"prediction": prediction, "correct": verdict.correct, "grade": verdict.grade}
    return _said(verdict, verdict.correct is not None, **facts, parts=part_items(verdict.parts))


def choice_fields(choice: Choice) -> dict[str, Any]:
    """Return the columns of a judgement that depend on a choice."""
    return _said(choice, choice.picked is not None, picked=choice.picked)


def _said(reply: Verdict | Vote | Choice, is_parsed: bool, **facts: Any) -> dict[str, Any]:
    """Return the columns of a judgement that depend on the reply; columns of other kinds of judgements are null."""
    return {
        "prediction": "",
        "correct": None,
        "grade": None,
        "parts": [],
        **dict.fromkeys(("votes_yes", "votes_no", "votes_abstained")),
        **facts,
        "status": PARSED if is_parsed else UNREADABLE,
        "replies": list(reply.raw),
        "error": reply.error,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
    }


def _is_final(row: Mapping[str, Any]) -> bool:
    """Return whether a row of `judgements` is complete; it is not if some votes on a trajectory are missing."""
    if row["kind"] != REDUNDANCY:
        return bool(row["replies"])
    return bool(len(row["replies"]) == row["votes_yes"] + row["votes_no"] + row["votes_abstained"])


_HEAD = ("judgement_key", "kind", "judge", "question_key", "rollout_key")


def _head(judgement: Judgement) -> dict[str, Any]:
    return {
        "judgement_key": judgement.key,
        "kind": judgement.kind,
        "judge": judgement.judge,
        "question_key": judgement.answer.row["question_key"],
        "rollout_key": judgement.answer.key,
    }
