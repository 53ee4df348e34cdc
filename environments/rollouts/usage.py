"""Read from the journal what the rollouts of earlier attempts have used, so that a limit covers all attempts."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from treadle.agent.cached_units import asked_role
from treadle.agent.call_cache import JournalCache
from treadle.agent.contract import CallRecord
from treadle.agent.metering import TokenBudget
from treadle.core.llm.types import Completion
from treadle.core.runs.stage import JournalView
from treadle.environments.rollouts.restarts import cached_usage
from treadle.environments.rollouts.settings import RolloutsSettings

TOKENS = ("prompt_tokens", "completion_tokens")
"""Columns with the tokens of the policy."""
SUMMARY_TOKENS = ("summarizer_prompt_tokens", "summarizer_completion_tokens")
"""Columns of the telemetry with the tokens of the summarizer."""


def charge_earlier(budget: TokenBudget, journal: JournalView, settings: RolloutsSettings, keys: Iterable[str]) -> None:
    """Charge a budget with the tokens that rollouts have used so far, including interrupted rollouts."""
    for key in keys:
        policy_tokens, summarizer_tokens = used_tokens(journal, key)
        budget.count(settings.model, *policy_tokens)
        if settings.summarizer is not None:
            budget.count(settings.summarizer, *summarizer_tokens)
        for role, tokens in asked_tokens(journal, settings, key).items():
            if role in settings.roles:
                budget.count(settings.roles[role].model, *tokens)


def used_tokens(journal: JournalView, key: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return prompt and sampled tokens of a rollout so far: those of its policy, and those of its summarizer."""
    if journal.is_finished(key):
        stored = orjson.loads(journal.finished(key))
        counts = {**(stored["telemetry"] or {}), **stored["row"]}
        policy_tokens, helper = ([int(counts.get(name, 0)) for name in names] for names in (TOKENS, SUMMARY_TOKENS))
        return (policy_tokens[0], policy_tokens[1]), (helper[0], helper[1])
    used = list(cached_usage(JournalCache(journal, key)))
    answers = [one for one in used if isinstance(one, Completion)]
    return _tokens(answers), _tokens([one for one in used if isinstance(one, CallRecord)])


def _tokens(answers: Iterable[Completion | CallRecord]) -> tuple[int, int]:
    """Return the sums of prompt and sampled tokens."""
    found = [(answer.prompt_tokens, answer.completion_tokens) for answer in answers]
    return sum(prompt for prompt, _ in found), sum(completion for _, completion in found)


def asked_tokens(journal: JournalView, settings: RolloutsSettings, key: str) -> dict[str, tuple[int, int]]:
    """Return prompt and sampled tokens of the models that a rollout has asked so far, by role."""
    if journal.is_finished(key):
        stored: dict[str, tuple[int, int]] = orjson.loads(journal.finished(key)).get("asked", {})
        return stored
    asked: dict[str, tuple[int, int]] = {}
    for unit in journal.units(key) if settings.roles else ():
        role, value = asked_role(unit), journal.get(key, unit)
        if role is not None and value is not None:
            answer, (prompt, sampled) = Completion.from_json(value), asked.get(role, (0, 0))
            asked[role] = prompt + answer.prompt_tokens, sampled + answer.completion_tokens
    return asked
