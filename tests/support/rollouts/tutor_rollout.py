"""A minimal agent loop for tests of the tutor: stub tools over a written world, any POST function."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

SYSTEM = "Use <search> and <python>. Think first, answer in \\boxed{}."
STOPS = ["</search>", "</python>", "</answer>"]
Complete = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def render(question: str, system: str = SYSTEM) -> str:
    """Return the ChatML prompt of a question, open for the assistant."""
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def run_python(code: str) -> str:
    """Work out the arithmetic of the tutor's programs, nothing else; anything wrong gives a traceback's last line."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return "SyntaxError: invalid syntax"
    first = tree.body[0]
    value = first.value if isinstance(first, (ast.Assign, ast.Expr)) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print":
        value = value.args[0]
    return str(_evaluate(value))


def _evaluate(node: ast.AST | None) -> int:
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "abs":
        return abs(_evaluate(node.args[0]))
    raise ValueError(f"not arithmetic: {node}")


def run_search(texts: Mapping[str, str], query: str) -> str:
    """Return the document whose title the query names."""
    return next((texts[word] for word in re.findall(r"[A-Z][a-z]+", query) if word in texts), "no results")


async def rollout(
    complete: Complete, texts: Mapping[str, str], question: str, *, model: str, seed: int = 0, prefix: str = ""
) -> str:
    """Run one trajectory in text mode and return the assistant turn."""
    text = prefix
    for turn in range(12):
        reply = await complete(
            {
                "model": model,
                "prompt": render(question) + text,
                "max_tokens": 512,
                "seed": seed * 100 + turn,
                "stop": STOPS,
                "include_stop_str_in_output": True,
            }
        )
        text += reply["choices"][0]["text"]
        call = re.search(r"<(search|python)>([^<]*)</\1>\Z", text)
        if call is None:
            return text
        result = run_search(texts, call[2]) if call[1] == "search" else run_python(call[2])
        text += f"<result>{result}</result>"
    return text


def boxed(text: str) -> str:
    """Return the content of the last box."""
    found = re.findall(r"\\boxed\{([^}]*)\}", text)
    return found[-1] if found else ""
