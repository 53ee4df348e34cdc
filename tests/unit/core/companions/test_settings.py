"""Configuration of companions: strict, with the path of each wrong key."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.tasks.config import TreadleConfig

GOOD: dict[str, Any] = {
    "name": "desk",
    "command": "serve 'two words' --port 8080",
    "ready_url": "http://127.0.0.1:8080/",
}


def test_command_is_a_list_or_one_line_with_quotes() -> None:
    for command in (GOOD["command"], ["serve", "two words", "--port", "8080"]):
        (one,) = load_config(TreadleConfig, data={"companions": [{**GOOD, "command": command}]}).companions
        assert one.command == ("serve", "two words", "--port", "8080")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"comand": "x"}, "companions.0.comand'; did you mean 'command'"),
        ({"command": ""}, "companions.0.command"),
        ({"command": "'"}, "companions.0.command"),
        ({"command": 7}, "companions.0.command"),
        ({"name": "No Name"}, "companions.0.name"),
        ({"name": "../x"}, "companions.0.name"),
        ({"ready_url": "ftp://x"}, "companions.0.ready_url"),
        ({"ready_url": "http://me:pw@x/"}, "companions.0.ready_url"),
        ({"ready_url": None}, "companions.0.*neither ready_url nor ready_text"),
        ({"env": ["A B"]}, "companions.0.env"),
        ({"env": ["DB_PASSWORD=x"]}, "companions.0.env.*pass it as 'DB_PASSWORD'"),
        ({"start_timeout_s": 0}, "companions.0.start_timeout_s"),
        ({"stop_timeout_s": "long"}, "companions.0.stop_timeout_s"),
    ],
)
def test_wrong_key_is_named_by_its_path(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(TreadleConfig, data={"companions": [{**GOOD, **keys}]})


def test_two_companions_have_two_names() -> None:
    with pytest.raises(ConfigError, match="companions.*two companions are named 'desk'"):
        load_config(TreadleConfig, data={"companions": [GOOD, GOOD]})
