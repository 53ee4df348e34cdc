"""Stand-ins for dependencies that bfcl-eval imports and the comparisons do not use; for the processes that run it."""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

_MODEL_CONFIG = "bfcl_eval.constants.model_config"
"""Imports the handlers of all models."""


class _StandIn(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "EnforceOverrides":
            return type(name, (), {})  # a base class
        # Used as decorators.
        return (lambda function: function) if name in ("override", "final") else MagicMock()


class _Finder(MetaPathFinder, Loader):
    def __init__(self, packages: Collection[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_stand_in = name.partition(".")[0] in self._packages or name == _MODEL_CONFIG
        return ModuleSpec(name, self, is_package=True) if is_stand_in else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _MODEL_CONFIG:
            vars(module)["MODEL_CONFIG_MAPPING"] = {"scripted": MagicMock(underscore_to_dot=False)}


def stand_in_for(packages: Collection[str]) -> None:
    """Let imports of these packages, and of the package's list of models, succeed from now on."""
    sys.meta_path.insert(0, _Finder(packages))
