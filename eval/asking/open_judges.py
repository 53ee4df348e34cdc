"""Send judgements to the open judge models: on answers and trajectories, votes on calls, choices among attempts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from treadle.agent.call_cache import CallCache
from treadle.agent.judges.best_of import ChoiceJudge
from treadle.agent.judges.model import ModelJudge
from treadle.agent.judges.redundancy import RedundancyJudge
from treadle.agent.model_sessions import ModelSessions
from treadle.eval.asking.choices import AttemptChoices
from treadle.eval.config import ScoresSettings
from treadle.eval.judge_identity import BEST_OF, REDUNDANCY
from treadle.eval.judge_queue import Judgement, JudgeQueue
from treadle.eval.stored_judgements import choice_fields, verdict_fields, vote_fields


class OpenJudges:
    """The open judge models of a stage instance."""

    def __init__(self, settings: ScoresSettings, judge_queue: JudgeQueue, choices: AttemptChoices) -> None:
        self._settings, self._judge_queue, self._choices = settings, judge_queue, choices
        self._judges: dict[str, ModelJudge] = {}
        self._redundancy: RedundancyJudge | None = None
        self._best_of: ChoiceJudge | None = None

    async def open(self, sessions: ModelSessions, wanted: Collection[tuple[str, str]]) -> None:
        """Open the models of pending judgements, given as (kind, model); endpoints of other models need not be up."""
        settings, judge = self._settings, self._judge_queue.judge
        for name, role in settings.judges.items():
            if (judge.kind, name) in wanted:
                model = await sessions.model(role.name, role.model, role.tokenizer_digest)
                self._judges[name] = ModelJudge(model.for_role("judge", role.sampling), judge)
        if (voter := settings.redundancy) is not None and (REDUNDANCY, voter.name) in wanted:
            model = await sessions.model(voter.name, voter.model, voter.tokenizer_digest)
            asked = model.for_role("redundancy", voter.sampling)
            self._redundancy = RedundancyJudge(asked, settings.options.redundancy.votes)
        if (chooser := settings.best_of) is not None and (BEST_OF, chooser.name) in wanted:
            model = await sessions.model(chooser.name, chooser.model, chooser.tokenizer_digest)
            self._best_of = ChoiceJudge(model.for_role("judge", chooser.sampling))

    async def ask(self, judgement: Judgement, cache: CallCache, deadline: float) -> dict[str, Any]:
        """Return the columns of a judgement that depend on the replies."""
        if judgement.is_vote:
            assert self._redundancy is not None, "votes need a judge"
            return vote_fields(await self._redundancy.vote(self._judge_queue.vote_case(judgement, deadline), cache))
        if judgement.attempts:
            assert self._best_of is not None, "choices need a judge"
            return choice_fields(await self._best_of.choose(self._choices.case(judgement, deadline), cache))
        case = self._judge_queue.case(judgement, deadline)
        verdict = await self._judges[judgement.judge].verdict(case, cache)
        return verdict_fields(case.prediction, verdict)
