"""Tasks: a counter that is to be moved."""

import copy

_ADD = {"name": "add", "description": "Add.", "parameters": {"type": "dict", "properties": {"by": {"type": "integer"}}}}
_READ = {"name": "read", "description": "Read.", "parameters": {"type": "dict", "properties": {}}}
_SPIN = {"name": "spin", "description": "Never return.", "parameters": {"type": "dict", "properties": {}}}


def _user(text):
    return [{"role": "user", "content": text}]


_TASK = {
    "question": [_user("Add 2."), _user("Add 3 and read.")],
    "initial_config": {"Counter": {"value": 10}},
    "involved_classes": ["Counter"],
    "function": [_ADD, _READ, _SPIN],
}
_TASKS = {
    "multi_turn_base": {**_TASK, "id": "multi_turn_base_0"},
    "multi_turn_miss_func": {
        **_TASK,
        "id": "multi_turn_miss_func_0",
        "question": [*_TASK["question"], []],
        "function": [_ADD],
        "missed_function": {"2": [_READ]},
    },
    "multi_turn_long_context": {**_TASK, "id": "multi_turn_long_context_0", "question": [_user("Add 1.")]},
}
_GOLD = {
    "multi_turn_base": [["add(by=2)"], ["add(by=3)", "read()"]],
    "multi_turn_miss_func": [["add(by=2)"], [], ["add(by=3)", "read()"]],
    "multi_turn_long_context": [["add(by=1)"]],
}


def load_dataset_entry(category):
    return [copy.deepcopy(_TASKS[category])] if category in _TASKS else []


def load_ground_truth_entry(category):
    return [{"id": f"{category}_0", "ground_truth": _GOLD[category]}] if category in _GOLD else []
