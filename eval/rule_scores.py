"""Store the rule scores that decide whether a judge is asked; the journal keeps them for later attempts.

Rule scores can depend on resource limits, and a retry must request the same judgements as the first attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import orjson

from treadle.agent.judges.rules import SymbolicLimits, rules_digest
from treadle.core.answers.score import Score
from treadle.core.config import digest_json, semantic_dump
from treadle.core.runs.stage import StageContext
from treadle.environments.scorers.base import no_verdict
from treadle.eval.answers import Answer, answers, open_scorers
from treadle.eval.config import ScoresOptions, ScoresSettings
from treadle.eval.judge_queue import JudgeQueue

RULES = "rules"
"""Key under which the journal stores the rule scores."""

_SCORER_FAILED = no_verdict("the scorer failed", "math_symbolic")


class RuleScores:
    """Rule scores of those rollouts of a stage instance for which they decide whether a judge is asked."""

    def __init__(self, context: StageContext, judge_queue: JudgeQueue) -> None:
        self._settings: ScoresSettings = context.settings
        self._inputs, self._journal, self._judge_queue = context.inputs, context.journal, judge_queue
        self._stores = context.store
        options = self._settings.options
        self._rules = rules_digest(_limits(options), options.f1_threshold)

    def store(self) -> None:
        """Compute and store the rule scores of answers that a judge may be asked about."""
        if not self._settings.judges or not self._judge_queue.judge.NEEDS_ANSWERS:
            return
        num_threads = self._settings.options.symbolic_workers
        with open_scorers(self._settings, self._stores) as scorers, ThreadPoolExecutor(num_threads) as threads:
            for batch in self._batches():
                wanted = (answer for answer in batch if self._judge_queue.needs_rule_score(answer))
                unknown = [answer for answer in wanted if self.stored(answer) is None]
                for answer, score in zip(unknown, threads.map(scorers.rule_score, unknown), strict=True):
                    if score.error is None:  # A failed score is not stored, so that the next attempt computes it again.
                        self._journal.append(RULES, self._unit(answer), orjson.dumps(asdict(score)))

    def stored(self, answer: Answer) -> Score | None:
        """Return the stored rule score of an answer, or None without one."""
        if not self._judge_queue.needs_rule_score(answer):
            return None
        known = self._journal.get(RULES, self._unit(answer))
        return None if known is None else Score(**orjson.loads(known))

    def answers(self) -> Iterator[tuple[Answer, Score | None]]:
        """Yield the rollouts, each with its rule score if that decides whether a judge is asked."""
        for answer in (answer for batch in self._batches() for answer in batch):
            rule = None
            if self._judge_queue.needs_rule_score(answer):
                # No stored rule score means that the scorer failed; then judges decide.
                rule = self.stored(answer) or _SCORER_FAILED
            yield answer, rule

    def rules(self) -> set[str]:
        """Return the rules of the run's questions."""
        pairs = {
            (row["scorer"], row["domain"])
            for table in self._inputs["questions"]
            for row in table.rows(("scorer", "domain"))
        }
        return {scorer or domain for scorer, domain in pairs}

    def _unit(self, answer: Answer) -> str:
        """Return a digest of everything the rule score depends on."""
        gold, entry = answer.gold, self._settings.scorers.get(answer.gold.rule)
        rule = [gold.rule, semantic_dump(entry) if entry is not None else None]
        return digest_json([self._rules, rule, gold.answers, gold.choices, answer.is_answered, answer.prediction])

    def _batches(self) -> Iterator[list[Answer]]:
        return answers(self._inputs["rollouts"], self._inputs["questions"], with_text=True)


def _limits(options: ScoresOptions) -> SymbolicLimits | None:
    if not options.symbolic:
        return None
    return SymbolicLimits(limit_s=options.symbolic_limit_s, memory_mib=options.symbolic_memory_mib)
