"""The judge in force: rules first, and for math answers that rules find unequal a model, where there is one."""

from __future__ import annotations

from treadle.agent.judges.base import Case, Verdict
from treadle.agent.judges.model import ModelJudge, model_judge_digest
from treadle.agent.judges.rules import DEFAULT_SYMBOLIC, RuleJudge, SymbolicLimits, rules_digest
from treadle.agent.memory import Memory
from treadle.agent.role import RoleModel
from treadle.core.answers.score import DEFAULT_F1_THRESHOLD
from treadle.core.config import digest_json


class AnswerJudge:
    """Judges answers of every domain.

    Unfinished or empty: wrong. qa and choice: their rules. Math: equal by rules is right; else the model decides;
    without a model it is wrong.
    """

    def __init__(
        self,
        symbolic: SymbolicLimits | None = DEFAULT_SYMBOLIC,
        f1_threshold: float = DEFAULT_F1_THRESHOLD,
        model: RoleModel | None = None,
    ) -> None:
        self._digest = answer_judge_digest(symbolic, f1_threshold, asks_model=model is not None)
        self._rules = RuleJudge(symbolic, f1_threshold)
        self._model = ModelJudge(model) if model is not None else None

    async def __aenter__(self) -> AnswerJudge:
        """Raises ConfigError where algebra is wanted and not installed."""
        await self._rules.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._rules.__aexit__(*exc)

    def digest(self) -> str:
        """See `answer_judge_digest`."""
        return self._digest

    async def verdict(self, case: Case, memory: Memory) -> Verdict:
        """See `Judge`."""
        verdict = await self._rules.verdict(case, memory)
        decided = verdict.correct or verdict.method in ("status", "empty", "choice")
        if decided or case.domain != "math" or self._model is None:
            return verdict
        return await self._model.verdict(case, memory)


def answer_judge_digest(symbolic: SymbolicLimits | None, f1_threshold: float, *, asks_model: bool) -> str:
    """Of all that decides an AnswerJudge's verdicts, beside the model itself; can be had before any model is there."""
    return digest_json([rules_digest(symbolic, f1_threshold), model_judge_digest() if asks_model else None])
