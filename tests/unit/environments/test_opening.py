"""Environments of a run that are opened together."""

from __future__ import annotations

import pytest

from treadle.core.errors import ConfigError
from treadle.environments.opening import check_trimming, open_runtimes
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
