"""Digest everything that a judge's verdicts depend on, and refuse two names for the same judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.agent.judges.base import Judge
from treadle.agent.judges.best_of import choice_judge_digest
from treadle.agent.role_settings import RoleSettings
from treadle.core.config import digest_json, semantic_dump
from treadle.core.engines.config import VllmServer
from treadle.core.errors import ConfigError

REDUNDANCY = "redundancy"
"""Kind of the judgements that are votes on redundant calls; no judge may have this kind."""
BEST_OF = "best_of"
"""Kind of the judgements that are choices among attempts; no judge may have this kind."""


def check_judges(judges: Mapping[str, RoleSettings], judge: Judge) -> None:
    """Raise ConfigError if two names refer to the same judge: it would be asked once and counted twice.

    Also raised if the judge's kind is `redundancy` or `best_of`, which name votes on calls and choices.
    """
    if judge.kind in (REDUNDANCY, BEST_OF):
        taken = "votes on calls" if judge.kind == REDUNDANCY else "choices among attempts"
        raise ConfigError(f"scores.judges.type = {judge.type!r}: {taken} have this name; choose another one")
    names: dict[str, str] = {}
    for name, role in judges.items():
        first = names.setdefault(judge_identity(role, ""), name)
        if first != name:
            raise ConfigError(
                f"scores.judges.models names {first!r} and {name!r}, which are the same model with the same "
                "settings; list only one of them"
            )


def judge_identity(role: RoleSettings | None, prompts: str, votes: int = 1, trained: Sequence[str] = ()) -> str:
    """Return the digest of a judge: model, sampling, prompts. Its name and endpoints do not count.

    A model that the run itself serves may be one that it trained, so its identity includes the checkpoint digests.
    """
    if role is None:
        return ""
    # Only models that the run serves itself can be checkpoints of this run.
    weights = trained if isinstance(role.model.server, VllmServer) else ()
    model = [semantic_dump(role.model), role.tokenizer_digest, *weights]
    return digest_json([*model, semantic_dump(role.sampling), prompts, votes])


def choice_digest(role: RoleSettings | None) -> str:
    """Return the digest of the prompts for choices and of the rules for showing attempts; empty without a model."""
    return "" if role is None else choice_judge_digest()
