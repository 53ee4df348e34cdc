"""Read and check LLaMA-Factory's configuration with its own parser."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any


class BadArguments(Exception):
    """Configuration that LLaMA-Factory does not accept."""


def read_arguments(path: Path) -> dict[str, Any]:
    """Return the YAML as `llamafactory-cli train` reads it."""
    from omegaconf import OmegaConf

    arguments = OmegaConf.to_container(OmegaConf.load(path))
    if not isinstance(arguments, dict):
        raise BadArguments(f"{path} is not a mapping of keys to values")
    return {str(name): value for name, value in arguments.items()}


def check_arguments(arguments: dict[str, Any]) -> None:
    """Raise BadArguments if the configuration is not valid.

    The error lists all unknown keys, each with the closest known one, values of a wrong type, and errors of the parser.
    """
    from llamafactory.hparams.parser import _TRAIN_ARGS, get_train_args
    from transformers import HfArgumentParser

    # Copies, because the parser modifies its input.
    parser = HfArgumentParser(_TRAIN_ARGS)
    actions = {action.dest: action for action in parser._actions}
    problems = []
    for name, value in arguments.items():
        if name not in actions:
            near = difflib.get_close_matches(name, actions, n=1, cutoff=0.6)
            problems.append(f"unknown key {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
        elif problem := _wrong_value(actions[name], value):
            problems.append(f"key {name!r}: {problem}")
    if problems:
        raise BadArguments("; ".join(problems))
    try:
        get_train_args(dict(arguments))
    except (ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        raise BadArguments(" ".join(str(error).split())) from error


def _wrong_value(action: Any, value: Any) -> str:
    """Return why argparse would refuse a plain value; empty if it would not.

    `parse_dict`, which reads the YAML, checks only keys.
    """
    if value is None or isinstance(value, (dict, list)):
        return ""
    if action.type is not None:
        try:
            value = action.type(str(value))
        except (ValueError, TypeError, KeyError) as error:
            return f"{value!r} is invalid ({error})"
    if action.choices is not None and value not in action.choices:
        return f"{value!r} is not one of {', '.join(str(choice) for choice in action.choices)}"
    return ""
