"""Types of environments by name: shipped, in a file next to the configuration, in a module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from treadle.core.config import config_folders
from treadle.core.errors import ConfigError
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.registry import (
    ENVIRONMENTS,
    environment_type,
    find_type,
    require_question,
    traits_of,
)
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.environments.settings import EnvironmentSettings
from treadle.rl.engine.rows import job_environments

HTTP = {"type": "http", "url": "http://a/", "description": "Get.", "parameters": {"properties": {}}}

CODE = """
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.types import Traits

class GuessSettings(EnvironmentSettings):
    low: int = 1

class Guess:
    name = "guess"
    settings = GuessSettings

    def traits(self, settings):
        return Traits(resume="restart")

    def open(self, settings, resources):
        raise NotImplementedError

class Half:
    settings = GuessSettings
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "guess.py"
    path.write_text(CODE)
    return path


def test_environment_without_a_type_is_question() -> None:
    assert type(ENVIRONMENTS.parse({})) is QuestionSettings
    assert traits_of(QuestionSettings()).forks and environment_type(QuestionSettings()).name == "question"


def test_class_in_a_file_validates_its_own_settings(file: Path) -> None:
    given = ENVIRONMENTS.parse({"type": "guess.py:Guess", "low": 3})
    assert (type(given).__name__, given.code_file, traits_of(given).resume) == ("GuessSettings", file, "restart")
    assert given.model_dump()["low"] == 3
    with pytest.raises(ValidationError, match="lo"):
        ENVIRONMENTS.parse({"type": "guess.py:Guess", "lo": 3})
    with pytest.raises(ConfigError, match=r'needs environment.type = "question", not .guess.py:Guess.'):
        require_question(given, "the stage")


def test_stage_reads_back_the_settings_that_it_dumped(file: Path) -> None:
    model = {"model": "m", "endpoints": [{"url": "http://127.0.0.1:1/v1"}]}
    environment = {"type": "guess.py:Guess", "low": 3}
    settings = RolloutsSettings.model_validate({"model_name": "m", "model": model, "environment": environment})
    again = RolloutsSettings.model_validate(settings.model_dump(mode="json"))
    assert again.environment == settings.environment and again.environment.model_dump()["low"] == 3


def test_edited_file_has_another_digest(file: Path) -> None:
    before = ENVIRONMENTS.parse({"type": "guess.py:Guess"})
    file.write_text(CODE.replace("low: int = 1", "low: int = 2"))
    after = ENVIRONMENTS.parse({"type": "guess.py:Guess"})
    assert (before.model_dump()["low"], after.model_dump()["low"]) == (1, 2)
    assert before.digest() != after.digest()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gues", "'gues' is unknown .*; known: question"),
        ("nowhere.at_all:Guess", "put its folder on PYTHONPATH"),
        ("treadle.environments.settings:Digests", "Digests cannot be made: TypeError: .* missing 2 required"),
    ],
)
def test_unknown_type_is_refused_with_what_to_do(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_type(name)


def test_broken_or_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        ENVIRONMENTS.parse({"type": "other.py:Guess"})
    gone = {"type": "guess.py:Guess", "code_file": str(file.with_name("gone.py"))}
    with pytest.raises(
        ValueError, match=r"no file .*gone.py; if it was moved, set code_file, next to the type, to its place"
    ):
        ENVIRONMENTS.parse(gone)
    with pytest.raises(ValueError, match=r"guess.py:Half is no environment, it has no traits"):
        ENVIRONMENTS.parse({"type": "guess.py:Half"})
    file.write_text("1 / 0")
    with pytest.raises(ValueError, match="cannot be loaded: ZeroDivisionError"):
        ENVIRONMENTS.parse({"type": "guess.py:Guess"})


def test_file_that_imports_its_neighbour_is_told_what_to_do(file: Path) -> None:
    file.with_name("words.py").write_text("WORDS = 3")
    file.write_text("import words" + CODE)
    with pytest.raises(ValueError, match=r"No module named 'words'; .* set type = \"guess:Guess\""):
        ENVIRONMENTS.parse({"type": "guess.py:Guess"})


def test_module_is_imported_from_its_folder_in_an_engine(tmp_path: Path) -> None:
    """Another process, without our path, gets the folder in its job."""
    package = tmp_path / "far" / "games"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "guess.py").write_text(CODE)
    environ = {**os.environ, "PYTHONPATH": f"{package.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    program = (
        "import json, sys; from treadle.environments.registry import ENVIRONMENTS; "
        "found = ENVIRONMENTS.parse({'type': 'games.guess:Guess'}); "
        "folder = str(ENVIRONMENTS.import_folder(found)); "
        "print(json.dumps({'environment': found.model_dump(mode='json'), 'import_folders': [folder]}))"
    )
    dumped = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    job = json.loads(dumped.stdout)
    assert job["import_folders"] == [str(package.parent)]
    with pytest.raises(ValueError, match="games"):
        ENVIRONMENTS.parse(job["environment"])
    named = {"environments": {"default": job["environment"]}, "plan": {"environment_digests": {}}}
    assert type(job_environments(job | named)["default"]).__name__ == "GuessSettings"
    assert [sys.path.pop()] == job["import_folders"]
    assert ENVIRONMENTS.import_folder(QuestionSettings()) is None


def test_types_share_limits_but_not_digests(file: Path) -> None:
    given = ENVIRONMENTS.parse({"type": "guess.py:Guess"})
    assert isinstance(given, EnvironmentSettings) and given.turn_limit() == 10
    assert given.digest() != EnvironmentSettings(code_sha256=given.code_sha256).digest()


def test_class_without_a_reaction_to_turns_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "idle_envs.py"
    file.write_text("from treadle.api import Environment\n\n\nclass Idle(Environment):\n    pass\n")
    with pytest.raises(ConfigError, match=r"idle_envs\.py:Idle has no method step"):
        find_type("idle_envs.py:Idle", file)


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        ("async def step(self, turn): ...", "Other", "there is no Other in .*slips.py; there: Slip$"),
        ("def step(self, turn): ...", "Slip", r"slips\.py:Slip\.step must be written with `async def`"),
        (
            "async def step(self, turn): ...\n    def score(self, task, rollout): ...",
            "Slip",
            "Slip.score must be written",
        ),
        (
            "async def step(self, turn): ...\n    async def tasks(self, *a): yield {}",
            "Slip",
            "Slip.tasks must be a `@cl",
        ),
    ],
)
def test_slips_in_a_class_are_named_before_a_run(tmp_path: Path, body: str, name: str, message: str) -> None:
    file = tmp_path / "slips.py"
    file.write_text(f"from treadle.api import Environment\n\n\nclass Slip(Environment):\n    {body}\n")
    with pytest.raises(ConfigError, match=message):
        find_type(f"slips.py:{name}", file)


def test_tasks_that_are_no_async_generator_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "lists.py"
    file.write_text(
        "from treadle.api import Environment\n\n\nclass Lists(Environment):\n    async def step(self, turn): ...\n\n"
        "    @classmethod\n    def tasks(cls, settings, split, seed): return [{'question': 'a'}]\n"
    )
    kind = find_type("lists.py:Lists", file)
    with pytest.raises(ConfigError, match="Lists.tasks returned a list: write `async def` with `yield`"):
        kind.tasks(kind.settings(), "train", 0)


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({"a b": HTTP}, "a tool cannot be named 'a b'"),
        (
            {"one": {"type": "shop.py:Shop"}, "two": {"type": "shop.py:Shop"}},
            "one and two both have a tool named 'sell'",
        ),
        ({"sell": HTTP, "two": {"type": "shop.py:Shop"}}, "sell and two both have a tool named 'sell'"),
        ({"one": {"type": "shop.py:Shp"}}, r"Value error, there is no Shp in .*shop.py; there: Shop"),
        ({"one": {"type": "shp.py:Shop"}}, r"there is no file \S*shp.py; put it there"),
    ],
)
def test_tools_that_cannot_be_named_or_found_are_refused_when_the_configuration_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: dict[str, object], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(
        "from treadle.api import tool\n\n\nclass Shop:\n    @tool\n    def sell(self) -> int:\n"
        '        """Sell."""\n        return 1\n'
    )
    token = config_folders.set((tmp_path,))
    try:
        with pytest.raises(ValidationError, match=said):
            ENVIRONMENTS.parse({"tools": tools})
    finally:
        config_folders.reset(token)
