"""Environments of a run that are opened together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from treadle.agent.dialects.functions import FunctionsDialect
from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.llm.config import Sampling
from treadle.environments.opening import check_trimming, engine_of, open_runtimes
from treadle.environments.planning.settings import PlanningSettings
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.types import Resources
from treadle.rl.environment import open_environments

BROKEN = QuestionSettings.model_validate({"search": {"corpus": ["/nowhere.jsonl"], "summarizer": "helper"}})


@pytest.mark.parametrize(("name", "begin"), [("web", r"^\[environments\.web\]: environment\."), ("default", "^env")])
async def test_error_names_the_table_of_the_environment_that_cannot_be_opened(name: str, begin: str) -> None:
    with pytest.raises(ConfigError, match=begin):
        async with open_runtimes({name: BROKEN}, Resources()):
            pass
    with pytest.raises(ConfigError, match=begin):
        async with open_environments({name: BROKEN}):
            pass


def test_contexts_are_trimmed_only_for_a_known_window_with_room_for_more_than_a_turn() -> None:
    trimmed = PlanningSettings(dialect="web", trim_reserve_tokens=100)
    check_trimming(trimmed, "m", 101)
    check_trimming(PlanningSettings(dialect="web"), "m", None)
    with pytest.raises(ConfigError, match=r"does not report; set models\.m\.max_model_len"):
        check_trimming(trimmed, "m", None)
    with pytest.raises(ConfigError, match=r"= 100 leaves no room in the window of model m, which has 100 tokens"):
        check_trimming(trimmed, "m", 100)


def test_contexts_of_native_calls_over_a_chat_service_are_not_managed() -> None:
    def engine(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(chat=object(), dialect=FunctionsDialect())

    session: Any = SimpleNamespace(name="m", facts=SimpleNamespace(max_model_len=None), engine=engine)
    engine_of(session, QuestionSettings(), Sampling())
    managed = QuestionSettings.model_validate({"context": {"manager": "linear_think"}})
    with pytest.raises(ConfigError, match=r'context.manager = "linear_think" needs .* models\.m gets native calls'):
        engine_of(session, managed, Sampling())


def test_unknown_and_contradicting_managers_of_contexts_are_refused() -> None:
    with pytest.raises(ConfigError, match="the context manager `memory` is not supported; use linear"):
        load_config(QuestionSettings, data={"context": {"manager": "memory"}})
    keys = {"trim_reserve_tokens": 9, "context": {"manager": "context_selfclip"}}
    with pytest.raises(ConfigError, match="cannot be combined with trim_reserve_tokens"):
        load_config(PlanningSettings, data=keys)
