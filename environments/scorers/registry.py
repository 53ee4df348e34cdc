"""Find scorers by name: shipped ones, entry points, and the table `scorers` of a configuration."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Protocol, get_args, runtime_checkable

from pydantic import SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.environments.scorers.answer import AnswerScorer
from treadle.environments.scorers.base import Reads, Scale, Scorer
from treadle.environments.scorers.outcome import OutcomeScorer

_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
_TAKEN = frozenset({"status", "empty", "judge"})
"""Values of the column `scorer` that do not name a scorer of the table `scorers`, so that no entry may have them."""


def _settings_of(found: Any, place: str) -> type[Scorer]:
    """Return a class of scorers; raise ConfigError for one that cannot be used."""
    if not (isinstance(found, type) and issubclass(found, Scorer)):
        raise ConfigError(f"scorers.type: {place} is not derived from treadle.api.Scorer")
    scorer: type[Scorer] = found
    if scorer.score is Scorer.score:
        raise ConfigError(f"scorers.type: {place} has no method score(task, rollout)")
    if not inspect.iscoroutinefunction(inspect.unwrap(scorer.score)):
        raise ConfigError(f"scorers.type: {place}.score must be written with `async def`")
    for name, allowed in (("READS", get_args(Reads)), ("SCALE", get_args(Scale))):
        if getattr(scorer, name) not in allowed:
            raise ConfigError(f"scorers.type: {place}.{name} must be one of {', '.join(allowed)}")
    return scorer


SCORERS = Registry(
    base=Scorer,
    key="scorers",
    group="treadle.scorers",
    example="my_scorers.py:Steps",
    shipped={
        "math": "treadle.environments.scorers.math:MathScorer",
        "qa": "treadle.environments.scorers.qa:QaScorer",
        "qa_characters": "treadle.environments.scorers.qa_characters:QaCharactersScorer",
        "em": "treadle.environments.scorers.em:EmScorer",
        "choice": "treadle.environments.scorers.choice:ChoiceScorer",
        "environment": "treadle.environments.scorers.environment:EnvironmentScorer",
        "workspace_tests": "treadle.environments.scorers.workspace_tests:WorkspaceTestsScorer",
        "stdin_tests": "treadle.environments.scorers.stdin_tests:StdinTestsScorer",
        "programs": "treadle.environments.scorers.programs.scorer:ProgramsScorer",
        "similarity": "treadle.environments.scorers.similarity.scorer:SimilarityScorer",
        "outcome": "treadle.environments.scorers.outcome:OutcomeScorer",
        "llm": "treadle.environments.scorers.graders.grader:Grader",
        "llm-gt": "treadle.environments.scorers.graders.grader:ReferenceGrader",
        "llm-binary": "treadle.environments.scorers.graders.grader:GoalGrader",
        "llm-binary-gt": "treadle.environments.scorers.graders.grader:ReferenceGoalGrader",
        "avg-llm": "treadle.environments.scorers.graders.grader:AverageGrader",
        "avg-llm-binary-gt": "treadle.environments.scorers.graders.grader:AverageReferenceGoalGrader",
    },
    settings_of=_settings_of,
)
"""Types of scorers."""

AnyScorer = TypeAliasType("AnyScorer", Annotated[SerializeAsAny[Scorer], WrapValidator(SCORERS.validate), SCORERS])
"""Settings of a scorer of any type."""


@runtime_checkable
class NamesScorers(Protocol):
    """Table of a configuration that names scorers."""

    def named_scorers(self) -> Iterator[tuple[str, str]]:
        """Yield each key that names a scorer, and the name."""
        ...


def check_entry_names(entries: Mapping[str, Scorer]) -> None:
    """Raise ValueError for a name in the table `scorers` that is taken or has a wrong form."""
    for name in entries:
        if not _NAME.fullmatch(name):
            raise ValueError(f"scorers.{name!r}: a name has up to 48 of a-z, 0-9 and _, and begins with a letter")
        if name in SCORERS.known() or name in _TAKEN:
            raise ValueError(f"scorers.{name}: this name is taken; choose another one")


def scorer_named(name: str, entries: Mapping[str, Scorer]) -> Scorer:
    """Return an entry of the table `scorers`, or a scorer with default settings. Raises ConfigError."""
    return entries[name] if name in entries else _with_defaults(name, tuple(entries))


@functools.lru_cache(maxsize=256)
def _with_defaults(name: str, others: tuple[str, ...]) -> Scorer:
    known = SCORERS.known()
    if name not in known:
        raise ConfigError(
            f"scorer {name[:60]!r} is unknown; known: {', '.join([*others, *known])}; add [scorers.<name>] for your own"
        )
    try:
        return SCORERS.parse(name)
    except ValueError as error:
        raise ConfigError(f"scorer {name!r}: {error}") from error


def reads_all(scorer: Scorer) -> bool:
    """Return whether a scorer gets the whole rollout, not only its answer or its outcome."""
    return not isinstance(scorer, (AnswerScorer, OutcomeScorer))


def compares_answers(name: str) -> bool:
    """Return whether a shipped scorer of this name compares answers with gold answers."""
    return name in SCORERS.shipped and issubclass(SCORERS.settings(name), AnswerScorer)
