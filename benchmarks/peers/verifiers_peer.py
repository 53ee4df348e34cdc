"""Run the work with verifiers: `ToolEnv` (or `SingleTurnEnv`), its multi-turn tool environment that runs in-process.

Results are saved one by one, as its own evaluation command does. Resume: `evaluate` with the same results folder.
"""

from __future__ import annotations

import asyncio
import os

import verifiers as vf
import work
from datasets import Dataset
from verifiers.types import ClientConfig


async def search(query: str) -> str:
    """Search the documents.

    Args:
        query: What to look for.
    """
    return work.TOOL_RESULT


async def python(code: str) -> str:
    """Run a program and return what it prints.

    Args:
        code: The program.
    """
    return work.TOOL_RESULT


async def has_answer(completion: list[object]) -> float:
    """Return the reward: 1 if the answer is present, else 0."""
    return float("2300" in str(completion[-1]))


def environment(kind: str, num_items: int) -> vf.Environment:
    """Return the work as an environment."""
    rows = [{"question": work.prompt(kind, item), "answer": "2300"} for item in range(num_items)]
    common = {"eval_dataset": Dataset.from_list(rows), "system_prompt": work.SYSTEM, "rubric": vf.Rubric([has_answer])}
    if kind == work.TOOLS:
        return vf.ToolEnv(tools=[search, python], max_turns=10, **common)
    return vf.SingleTurnEnv(**common)


def main() -> None:
    """Evaluate, or resume the evaluation."""
    kind, url, num_items, in_flight, folder, _ = work.arguments()
    os.environ["STUB_API_KEY"] = "none"
    results = asyncio.run(
        environment(kind, num_items).evaluate(
            ClientConfig(api_key_var="STUB_API_KEY", api_base_url=url),
            work.MODEL,
            max_concurrent=in_flight,
            results_path=folder / "results",
            save_results=True,
            on_progress=lambda *_: None,
        )
    )
    outputs = results["outputs"]
    assert all(output["reward"] == 1.0 for output in outputs)
    work.report([int(output["example_id"]) for output in outputs])


if __name__ == "__main__":
    main()
