"""Describe an environment to the models that explore it: its things, what can be done, and which tasks to make."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field, ValidationError

from treadle.core.config import Section
from treadle.core.errors import ConfigError, DataError
from treadle.core.runs.address import Address
from treadle.core.untrusted.json_text import load_json
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.environments.mixture import Environments
from treadle.stages.plan import Plan

SHIPPED = ("ledger", "bfcl", "question")
"""Types of environments with a shipped profile."""
_DIFFICULTIES = {
    1: "one thing or one property of it",
    2: "several things that do not depend on each other",
    3: "several things of which one depends on another: a condition, or an order",
}


class ProfileOption(Section):
    """Something that can be done with an entity."""

    name: str
    """Short name."""
    description: str = ""
    """One sentence."""


class ProfileEntity(Section):
    """A kind of thing in an environment."""

    name: str
    """Short name."""
    description: str = ""
    """One sentence."""
    attrs: dict[str, str] = {}
    """Properties by name, each with one sentence."""
    opts: tuple[ProfileOption, ...] = ()
    """What can be done with it."""


class TaskPreference(Section):
    """Kind of the tasks to make."""

    num_entities: int = Field(default=2, ge=1)
    """Number of kinds of things that a task is about, at most."""
    num_opts: int = Field(default=3, ge=1)
    """Number of different operations that a task takes, at most."""
    relation_difficulty: int = Field(default=3, ge=1, le=3)
    """1: one entity or property; 2: several independent ones; 3: conditions or an order between them."""


class Profile(Section):
    """Description of an environment for models."""

    name: str
    """Name of the environment."""
    background: str = ""
    """A few sentences."""
    entities: tuple[ProfileEntity, ...] = ()
    """Kinds of things in it."""
    task_preference: TaskPreference = TaskPreference()
    """Kind of the tasks to make."""

    def shown(self) -> dict[str, Any]:
        """Return the profile as an object for prompts, the difficulty in words."""
        dumped = self.model_dump(mode="json")
        level = self.task_preference.relation_difficulty
        dumped["task_preference"]["relation_difficulty"] = f"up to {level} of 3: {_DIFFICULTIES[level]}"
        return dumped

    def text(self) -> str:
        """Return the profile in lines, for an instruction."""
        lines = [f"{self.name}: {self.background}".rstrip(": ")]
        for entity in self.entities:
            attrs = f" Properties: {', '.join(entity.attrs)}." if entity.attrs else ""
            opts = f" Operations: {', '.join(one.name for one in entity.opts)}." if entity.opts else ""
            lines.append(f"- {entity.name}: {entity.description}{attrs}{opts}")
        return "\n".join(lines)


def find_profile(path: Path | None, environment_type: str, key: str = "exploration.profiles.default") -> Profile:
    """Return the profile in a TOML or JSON file, or the shipped one of a type of environment.

    `key` names the file in the configuration. Raises ConfigError if there is none or it is invalid, DataError if the
    file cannot be read.
    """
    if path is None and environment_type not in SHIPPED:
        raise ConfigError(
            f"there is no profile of environments of the type {environment_type!r}: set {key} to a TOML or JSON file "
            f"that describes it; shipped ones: {', '.join(SHIPPED)}"
        )
    shown = f"{environment_type}.toml" if path is None else str(path)
    content = files(__package__).joinpath(shown).read_bytes() if path is None else _content(path, key)
    try:
        data = load_json(content) if shown.endswith(".json") else tomllib.loads(content.decode())
        return Profile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"{key}: {shown}: {place}: {first['msg']}") from None
    except (ValueError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{key}: {shown} is neither TOML nor JSON: {error}") from None


def _content(path: Path, key: str) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise DataError(f"{key}: {path} cannot be read: {error.strerror or error}") from None


def explored_environments(plan: Plan, seeds: Address) -> Environments:
    """Return the environments by name, without those whose tasks are all held out.

    `seeds` is the address of the instance of `questions` with the seed tasks.
    """
    sources = plan.options(seeds, QuestionsSettings).sources
    held_out = {one.environment for one in sources} - {one.environment for one in sources if one.split != "heldout"}
    return {name: one for name, one in plan.environments().items() if name not in held_out}
