"""Define what a training asks of its engine: its environment, its command line, its commands and the keys it takes.

An engine is one class: its settings, and methods that Treadle calls before and in the engine's processes. `RlEngine`
and `SftEngine` derive from the base here. Documented in docs/behaviour/rl.md, part "Engine".
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import SerializerFunctionWrapHandler, model_serializer

from treadle.core.engines.environments import choose_variant, has_gpu, python_of
from treadle.core.engines.events import EventFile
from treadle.core.errors import ConfigError
from treadle.core.registry import Entry

_COMMANDS = ("check", "train", "finish")


class TrainingEngine(Entry):
    """Settings of an engine, with the methods that train; use `treadle.api.RlEngine` or `SftEngine`."""

    environment: ClassVar[str] = ""
    """Name of the environment that has its packages, see `treadle env list`; empty for Treadle's own interpreter."""
    module: ClassVar[str]
    """Module that runs a command of an engine, with `-m`."""
    section: ClassVar[str]
    """Table of the configuration that has the key `engine`, for errors."""
    typed_keys: ClassVar[Mapping[str, str]] = {}
    """Key of the engine's own configuration -> key of the section with the same meaning, to use instead."""
    refused_keys: ClassVar[Mapping[str, str]] = {}
    """Key of the engine's own configuration that would break what the stage guarantees -> the reason."""

    def choose_variant(self, variant: str) -> str:
        """Return the build to use, `cpu` or `cuda`; raise ConfigError for one that the environment does not have."""
        if self.environment:
            return choose_variant(self.environment, variant)
        return ("cuda" if has_gpu() else "cpu") if variant == "auto" else variant

    def python(self, variant: str) -> Path:
        """Return the interpreter of the engine's processes; raise EngineError if its environment is not installed."""
        return python_of(self.environment, variant) if self.environment else Path(sys.executable)

    def argv(self, command: str, job: Path, variant: str) -> list[str]:
        """Return the command line of a process that runs a command with the job in a file.

        By default it loads this class in the engine's interpreter and calls the method of the command.
        """
        return [str(self.python(variant)), "-m", self.module, command, str(job)]

    def environ(self, command: str, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of a process; `environ` has those that every training gets."""
        return dict(environ)

    def check(self, job: Mapping[str, Any], events: EventFile) -> None:
        """Check the job in the engine's process before training, and write the event `prepared`."""
        raise NotImplementedError(f"{type(self).__name__} needs a method check(job, events)")

    def train(self, job: dict[str, Any], events: EventFile) -> None:
        """Train in the engine's process, from the state in `job["resume"]` if there is one."""
        raise NotImplementedError(f"{type(self).__name__} needs a method train(job, events)")

    def finish(self, job: Mapping[str, Any], events: EventFile) -> None:
        """Write the model's folder in the engine's process, and the event `greedy`."""
        raise NotImplementedError(f"{type(self).__name__} needs a method finish(job, events)")

    @property
    def title(self) -> str:
        """Name of the engine in messages."""
        return self.type

    def label(self, versions: Mapping[str, str], variant: str) -> str:
        """Return the engine with the version of its package and the build, as a checkpoint's row shows them."""
        return f"{' '.join(filter(None, (self.type, versions.get(self.type))))}, {variant}"

    def check_extra(self, extra: Iterable[str], known: Container[str]) -> None:
        """Raise ValueError for a key of `extra` that is not passed through; `known` are the keys of the section."""
        for key in extra:
            if (ours := self.typed_keys.get(key)) or (ours := key) in known:
                raise ValueError(f"{key!r} is not passed through: write it as `{self.section}.{ours}`")
            if (reason := self.refused_keys.get(key)) is not None:
                raise ValueError(f"{key!r} is not passed through: {reason}")

    def as_text(self) -> str | None:
        """Return the type, as text that represents the engine, if all other keys have their defaults; else None."""
        fields = type(self).model_fields.items()
        is_plain = all(getattr(self, name) == field.get_default() for name, field in fields if name != "type")
        return self.type if is_plain else None

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> Any:
        text = self.as_text()
        return handler(self) if text is None else text


T_Engine = TypeVar("T_Engine", bound=TrainingEngine)


def require_engine(found: Any, place: str, base: type[T_Engine]) -> type[T_Engine]:
    """Return the class that an engine's type names; raise ConfigError if it is no engine, or lacks a method."""
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{base.section}.engine: {place} is not derived from treadle.api.{base.__name__}")
    missing = [name for name in _COMMANDS if getattr(found, name) is getattr(TrainingEngine, name)]
    if missing and found.argv is TrainingEngine.argv:
        raise ConfigError(f"{base.section}.engine: {place} has no method {missing[0]}(job, events)")
    return found
