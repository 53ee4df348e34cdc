"""Environments of a run that are opened together."""

from __future__ import annotations

import pytest

from treadle.core.errors import ConfigError
from treadle.environments.opening import open_runtimes
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
