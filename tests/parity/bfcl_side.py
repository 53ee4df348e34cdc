"""The package's side of the comparison: conversations made of gold calls, and the verdicts of the package's own runner.

Run with the Python of the engine `bfcl`. Dependencies that the runner imports and does not use are stand-ins.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import random
import sys
from typing import Any

from stand_ins import stand_in_for

_STAND_INS = {"openai", "requests", "tqdm", "dotenv", "overrides", "numpy", "pandas", "bs4", "html2text", "serpapi"}
KINDS = ("gold", "dropped", "changed", "added", "reordered", "malformed")
Call = list[Any]
"""Name and arguments; arguments that are text are not readable as JSON."""
Turns = list[list[list[Call]]]
"""Calls per turn of the user and turn of the model."""


stand_in_for(_STAND_INS)

from bfcl_eval.constants.default_prompts import MAXIMUM_STEP_LIMIT  # noqa: E402
from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING  # noqa: E402
from bfcl_eval.eval_checker import eval_runner  # noqa: E402
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils  # noqa: E402
from bfcl_eval.model_handler.utils import convert_to_function_call  # noqa: E402
from bfcl_eval.utils import load_dataset_entry, load_ground_truth_entry  # noqa: E402

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")


class Handler:
    """The part of a handler of native calls that the runner uses."""

    def decode_execute(self, result: Any, has_tool_call_tag: bool) -> list[str]:
        return convert_to_function_call(result)


def gold_turns(entry: dict[str, Any], gold: list[list[str]]) -> Turns:
    """Return gold calls as native calls, one turn of the model per turn of the user."""
    return [[[_native(text, entry["involved_classes"]) for text in texts]] if texts else [] for texts in gold]


def _native(text: str, classes: list[str]) -> Call:
    parsed = ast.parse(text.strip(), mode="eval").body
    assert isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Name), text
    name = parsed.func.id
    given = {one.arg: ast.literal_eval(one.value) for one in parsed.keywords}
    if parsed.args:
        owners = [getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[one]), one) for one in classes]
        owner = next(one for one in owners if hasattr(one, name))
        names = [one for one in inspect.signature(getattr(owner, name)).parameters if one != "self"]
        given = {**dict(zip(names, map(ast.literal_eval, parsed.args), strict=False)), **given}
    return [name, given]


def derived(kind: str, turns: Turns, entry: dict[str, Any], rng: random.Random) -> Turns:
    """Return a conversation that differs from the gold one in one place."""
    made = copy.deepcopy(turns)
    places = [(turn, step) for turn, steps in enumerate(made) for step in range(len(steps))]
    turn, step = rng.choice(places)
    calls = made[turn][step]
    at = rng.randrange(len(calls))
    if kind == "dropped":
        del calls[at]
        made[turn] = [one for one in made[turn] if one]
    elif kind == "changed":
        name, given = calls[at]
        if given:
            key = rng.choice(sorted(given))
            given[key] = _other(given[key], rng)
        else:
            calls[at] = [f"{name}s", given]
    elif kind == "added":
        function = rng.choice(entry["function"])
        properties = function["parameters"]["properties"]
        wanted = {key: _made(properties[key].get("type"), rng) for key in function["parameters"].get("required", ())}
        calls.insert(rng.randrange(len(calls) + 1), [function["name"], wanted])
    elif kind == "reordered":
        everything = [call for steps in made for one in steps for call in one]
        first, second = rng.sample(range(len(everything)), 2) if len(everything) > 1 else (0, 0)
        everything[first], everything[second] = everything[second], everything[first]
        rest = iter(everything)
        made = [[[next(rest) for _ in one] for one in steps] for steps in made]
    elif kind == "malformed":
        calls[at] = [calls[at][0], json.dumps(calls[at][1])[:-1] + ","]
    return made


def _split(steps: list[list[Call]]) -> list[list[Call]]:
    """Return each call as a turn of the model of its own, if the package takes so many."""
    calls = [call for one in steps for call in one]
    is_readable = not any(isinstance(given, str) for _, given in calls)
    return [[call] for call in calls] if is_readable and len(calls) <= MAXIMUM_STEP_LIMIT else steps


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + rng.choice([1, 10])
    return value[:-1] if isinstance(value, list) and value else f"{value}x"


def _made(kind: str | None, rng: random.Random) -> Any:
    return {"integer": rng.randrange(1, 9), "float": 1.5, "boolean": True, "array": ["a"], "dict": {}}.get(
        kind or "", "temp"
    )


def verdict(entry: dict[str, Any], gold: list[list[str]], turns: Turns) -> list[Any]:
    """Return validity and type of error by the runner of the package, on objects that no earlier verdict changed."""
    for name in [one for one in vars(multi_turn_utils) if one.endswith("_instance")]:
        delattr(multi_turn_utils, name)
    results = [[*(_as_results(calls) for calls in steps), "Done."] for steps in turns]
    category = entry["id"].rpartition("_")[0]
    found = eval_runner._evaluate_single_multi_turn_entry(
        Handler(), entry["id"], results, gold, copy.deepcopy(entry), "scripted", category
    )
    return [found["valid"], found.get("error", {}).get("error_type", "")]


def _as_results(calls: list[Call]) -> list[dict[str, str]]:
    return [{name: given if isinstance(given, str) else json.dumps(given)} for name, given in calls]


def conversations() -> list[dict[str, Any]]:
    """Return conversations of all kinds for all tasks, each with the package's verdict."""
    made = []
    for category in CATEGORIES:
        entries = load_dataset_entry(f"multi_turn_{category}")
        for entry, answer in zip(entries, load_ground_truth_entry(f"multi_turn_{category}"), strict=True):
            gold = gold_turns(entry, answer["ground_truth"])
            for kind in KINDS:
                rng = random.Random(f"{entry['id']} {kind}")
                turns = gold if kind == "gold" else derived(kind, gold, entry, rng)
                turns = [_split(steps) if rng.random() < 0.5 else steps for steps in turns]
                found = verdict(entry, answer["ground_truth"], turns)
                first = entry["question"][0][0]["content"]
                made.append({"id": entry["id"], "first": first, "kind": kind, "turns": turns, "verdict": found})
    return made


if __name__ == "__main__":
    json.dump(conversations(), sys.stdout)
