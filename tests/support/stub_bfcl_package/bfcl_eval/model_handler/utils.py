"""Conversions."""

import copy
import json


def convert_to_tool(functions, mapping, style):
    made = copy.deepcopy(functions)
    for one in made:
        one["parameters"]["type"] = mapping[one["parameters"]["type"]]
    return [{"type": "function", "function": one} for one in made]


def convert_to_function_call(calls):
    return [
        f"{name}({','.join(f'{key}={value!r}' for key, value in json.loads(text).items())})"
        for call in calls
        for name, text in call.items()
    ]
