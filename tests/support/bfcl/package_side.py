"""The package's side: its tasks, its parsers of calls, its checker and its API classes. Run by installed.py.

Only this module imports the package. Its heavy dependencies, which parsers and checker do not use, are stand-ins.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from stand_ins import stand_in_for

_STAND_INS = {
    "tenacity",
    "tree_sitter",
    "tree_sitter_java",
    "tree_sitter_javascript",
    "filelock",
    "overrides",
    "openai",
}
_STAND_INS |= {"requests", "tqdm", "transformers", "dotenv"}


stand_in_for(_STAND_INS)

import bfcl_eval  # noqa: E402
from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.constants.executable_backend_config import (  # noqa: E402
    CLASS_FILE_PATH_MAPPING,
    MULTI_TURN_FUNC_DOC_FILE_MAPPING,
)
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call  # noqa: E402
from bfcl_eval.model_handler.local_inference.qwen_fc import QwenFCHandler  # noqa: E402
from bfcl_eval.model_handler.utils import ast_parse  # noqa: E402

DATA = Path(bfcl_eval.__file__).parent / "data"
SINGLE_TURN = {
    "simple_python": 35, "multiple": 35, "parallel": 35, "parallel_multiple": 35,
    "live_simple": 10, "live_multiple": 10, "live_parallel": 16, "live_parallel_multiple": 24,
}  # fmt: skip
"""Category -> tasks in the sample. Those in Java and JavaScript have source text as values, not JSON."""
NUM_MULTI_TURN = 50


def tasks(_: Any) -> list[dict[str, Any]]:
    """Return the sample: id, functions, user messages per turn, and gold calls per turn as the package parses them."""
    return [*_single_turn(), *_multi_turn()]


def check(rollouts: list[dict[str, Any]]) -> list[str]:
    """Return what the package's checker says against calls, given as id and calls; empty if all are right."""
    tasks_of = {row["id"]: (category, row, gold) for category in SINGLE_TURN for row, gold in _sample(category)}
    faults = []
    for rollout in rollouts:
        category, row, gold = tasks_of[rollout["id"]]
        calls = [{name: arguments} for name, arguments in rollout["calls"]]
        found = ast_checker(row["function"], calls, gold["ground_truth"], Language.PYTHON, category, "scripted")
        if not found["valid"]:
            faults.append(f"{row['id']}: {found}")
    return faults


def parse_text(texts: list[str]) -> list[list[list[Any]]]:
    """Return the calls in texts in the Hermes form, as the handler of Qwen models parses them."""
    return [[[one["name"], one["arguments"]] for one in QwenFCHandler._extract_tool_calls(text)] for text in texts]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _category(category: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    name = f"BFCL_v4_{category}.json"
    gold = {row["id"]: row for row in _rows(DATA / "possible_answer" / name)}
    return [(row, gold[row["id"]]) for row in _rows(DATA / name)]


def _sample(category: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = _category(category)
    number = SINGLE_TURN[category]
    return [found[index * len(found) // number] for index in range(number)]


def _single_turn() -> list[dict[str, Any]]:
    made = []
    for category in SINGLE_TURN:
        for row, gold in _sample(category):
            calls = [
                f"{name}({', '.join(f'{key}={value!r}' for key, value in _chosen(accepted).items())})"
                for one in gold["ground_truth"]
                for name, accepted in one.items()
            ]
            (messages,) = row["question"]
            said = "\n\n".join(message["content"] for message in messages)
            parsed = [[name, given] for call in ast_parse(f"[{', '.join(calls)}]") for name, given in call.items()]
            made.append(
                {"id": row["id"], "functions": row["function"], "turns": [said], "gold": [parsed], "results": []}
            )
    return made


def _chosen(accepted: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the first accepted value of each argument; `""` means that it may be left out."""
    values = {key: [one for one in options if one != ""] for key, options in accepted.items()}
    return {key: _plain(options[0]) for key, options in values.items() if options}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _chosen(value)
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _multi_turn() -> list[dict[str, Any]]:
    found = _category("multi_turn_base")
    made = []
    for row, gold in found[:: len(found) // NUM_MULTI_TURN]:
        classes, config = row["involved_classes"], row["initial_config"]
        docs = [_rows(DATA / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]) for name in classes]
        turns = [[_call(text, classes) for text in texts] for texts in gold["ground_truth"]]
        results = [
            execute_multi_turn_func_call(texts, config, classes, "scripted", row["id"])[0]
            for texts in gold["ground_truth"]
        ]
        made.append(
            {
                "id": row["id"],
                "functions": [one for doc in docs for one in doc],
                "turns": ["\n\n".join(message["content"] for message in messages) for messages in row["question"]],
                "gold": turns,
                "results": results,
                "classes": {name: CLASS_FILE_PATH_MAPPING[name] for name in classes},
                "config": config,
            }
        )
    return made


def _call(text: str, classes: list[str]) -> list[Any]:
    """Return name and arguments of a gold call; the package's parser leaves out those without a name."""
    ((name, given),) = ast_parse(text)[0].items()
    parsed = ast.parse(text, mode="eval").body
    assert isinstance(parsed, ast.Call)
    if parsed.args:
        owner = next(
            cls
            for cls in (getattr(sys.modules[CLASS_FILE_PATH_MAPPING[one]], one) for one in _imported(classes))
            if hasattr(cls, name)
        )
        names = [one for one in inspect.signature(getattr(owner, name)).parameters if one != "self"]
        given = {**dict(zip(names, map(ast.literal_eval, parsed.args), strict=False)), **given}
    return [name, given]


def _imported(classes: list[str]) -> list[str]:
    for name in classes:
        __import__(CLASS_FILE_PATH_MAPPING[name])
    return classes


if __name__ == "__main__":
    _asked = {"tasks": tasks, "check": check, "parse_text": parse_text}[sys.argv[1]]
    json.dump(_asked(json.load(sys.stdin)), sys.stdout)
