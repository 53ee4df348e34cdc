"""Load classes and functions of users: from a file next to the configuration, a module, or an entry point."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from treadle.core.config import config_folders
from treadle.core.errors import ConfigError


def entry_point_places(group: str) -> dict[str, str]:
    """Return the `module:attribute` of each entry point in a group, by name.

    Raises ConfigError if two packages use one name for different places.
    """
    found: dict[str, str] = {}
    for point in _entry_points(tuple(sys.path)).select(group=group):
        if found.setdefault(point.name, point.value) != point.value:
            raise ConfigError(
                f"two packages have an entry point {point.name!r} of {group}: {found[point.name]} and {point.value}; "
                "rename or uninstall one"
            )
    return found


@functools.lru_cache(maxsize=8)
def _entry_points(path: tuple[str, ...]) -> Any:
    """Return the entry points of all groups; looking through all packages on the path takes 10 ms.

    The type is `EntryPoints`; before Python 3.12, it is a mapping that also has `select`.
    """
    return entry_points()


def find_code_file(name: str, known: object) -> Path | None:
    """Return the file in a name such as `my_envs.py:Guess`; None for names of other forms.

    It is `known` if that is given (`code_file`), else the file in the current folder or next to the configuration.
    Raises ValueError if there is no such file.
    """
    place, colon, _ = name.rpartition(":")
    if not colon or not place.endswith(".py"):
        return None
    folders = (Path.cwd(), *config_folders.get())
    candidates = [Path(str(known))] if known else list(dict.fromkeys(folder / place for folder in folders))
    for path in candidates:
        if path.is_file():
            return path.resolve()
    remedy = "if it was moved, set code_file, next to the type, to its place" if known else "put it there"
    raise ValueError(f"type = {name!r}: there is no file {' or '.join(map(str, candidates))}; {remedy}")


def from_file(file: Path, attribute: str, key: str) -> Any:
    """Return an attribute of a Python file; a changed file is read again.

    `key` is the configuration key that names it, for errors. Raises ConfigError.
    """
    return _from_file(file, attribute, key, file.stat().st_mtime_ns)


class _SourceLoader(SourceFileLoader):
    """Loader that compiles the source each time.

    Python takes a compiled file for current if time in seconds and size are equal, which they are after a quick edit.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Raise OSError, so that no compiled file is read or written."""
        raise OSError(f"{path} is compiled each time")


@functools.lru_cache(maxsize=64)
def _from_file(file: Path, attribute: str, key: str, changed_ns: int) -> Any:
    name = f"treadle_own_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file, loader=_SourceLoader(name, str(file)))
    if spec is None or spec.loader is None:
        raise ConfigError(f"{key}: {file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # any error that a user's file raises
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and (file.parent / f"{error.name}.py").is_file():
            other = f"{file.stem}:{attribute}"
            what += f'; a file cannot import its neighbours: set type = "{other}", with the folder on PYTHONPATH'
        raise ConfigError(f"{key}: {attribute} in {file} cannot be loaded: {what}") from error
    if not hasattr(module, attribute):
        there = [name for name, one in vars(module).items() if getattr(one, "__module__", None) == module.__name__]
        raise ConfigError(f"{key}: there is no {attribute} in {file}; there: {', '.join(there) or 'nothing'}")
    return getattr(module, attribute)


@functools.lru_cache(maxsize=64)
def from_module(module: str, attribute: str, key: str) -> Any:
    """Return an attribute of a module; `key` is the configuration key that names it. Raises ConfigError."""
    if not attribute:
        raise ConfigError(f"{key}: {module!r} names no attribute; write it as {module}:NAME")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # any error that a user's module raises on import
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            what += "; put its folder on PYTHONPATH"
        raise ConfigError(f"{key}: {module}:{attribute} cannot be loaded: {what}") from error


def import_folder_of(module: str) -> Path | None:
    """Return the folder that an import of a module needs on the path; None if it cannot be found."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin).parent if spec.origin else None
