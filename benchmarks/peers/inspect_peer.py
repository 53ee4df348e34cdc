"""Run the work with inspect_ai: a task of plain `generate()` with two tools, using its own `eval` and `eval_retry`.

Resume: `eval_retry` of the log that the killed process left, which first recovers the samples of its buffer.
"""

from __future__ import annotations

import os

import work
from inspect_ai import Task, eval, eval_retry, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalLog, list_eval_logs
from inspect_ai.solver import Solver, generate, system_message, use_tools
from inspect_ai.tool import Tool, tool


@tool
def search() -> Tool:
    """Return the search tool."""

    async def execute(query: str) -> str:
        """Search the documents.

        Args:
            query: What to look for.
        """
        return work.TOOL_RESULT

    return execute


@tool
def python() -> Tool:
    """Return the Python tool."""

    async def execute(code: str) -> str:
        """Run a program and return what it prints.

        Args:
            code: The program.
        """
        return work.TOOL_RESULT

    return execute


@task
def answers(kind: str, num_items: int) -> Task:
    """Return the work as a task."""
    samples = [Sample(id=item + 1, input=work.prompt(kind, item), target="2300") for item in range(num_items)]
    tools: list[Solver] = [use_tools(search(), python())] if kind == work.TOOLS else []
    return Task(dataset=MemoryDataset(samples), solver=[system_message(work.SYSTEM), *tools, generate()])


def main() -> None:
    """Evaluate, or retry the evaluation that was killed."""
    kind, url, num_items, in_flight, folder, resume = work.arguments()
    os.environ |= {"STUB_API_KEY": "none", "STUB_BASE_URL": url, "XDG_DATA_HOME": str(folder / "data")}
    settings = {
        "max_connections": in_flight,
        "max_samples": in_flight,
        "display": "none",
        "log_dir": str(folder / "logs"),
    }
    logs: list[EvalLog]
    if resume:
        crashed = list_eval_logs(str(folder / "logs"))
        logs = eval_retry(crashed, **settings)
    else:
        logs = eval(answers(kind, num_items), model=f"openai-api/stub/{work.MODEL}", **settings)
    assert [log.status for log in logs] == ["success"], [(log.status, log.error) for log in logs]
    work.report([int(sample.id) - 1 for sample in logs[0].samples or []])


if __name__ == "__main__":
    main()
