"""Run the stage `pools` over growing numbers of questions: memory must not grow, CPU per question must stay constant.

    python -m benchmarks.rollouts.flywheel [--questions 1000 2000 5000] [--json]

Every size runs in a process of its own over the same world and against one tutor that responds at once (noisy persona,
all roles), with the real search index, journal and artifacts. The Python tool is a stub that evaluates the tutor's
arithmetic in the process; otherwise sandboxes would dominate on 2 cores. Each figure is the cost of a question in
Treadle's own process, without the tutor's CPU. Memory is the peak including writing the tables, compared between the
smallest and the largest size.
"""

from __future__ import annotations

import argparse
import ast
import json
import operator
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from benchmarks.parts.figures import Figure, add_json_option, publish
from benchmarks.parts.measuring import KIB, MemoryTimes, memory_kib
from benchmarks.parts.scale_runs import tutor
from treadle.agent.tools.outcome import CallContext, Tool, ToolOutcome
from treadle.core.config import load_config
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.world_files import write_world
from treadle.environments.question import kind
from treadle.environments.question.settings import QuestionSettings
from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig

SIZES = (1_000, 2_000, 5_000)
_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


class Arithmetic:
    """Stub of the Python tool: prints the value of the only expression in a program, or an error."""

    name = "python"

    async def __aenter__(self) -> Tool:
        """Return the tool; there is nothing to open."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing; there is nothing to close."""

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Evaluate the program."""
        try:
            first = ast.parse(argument).body[0]
            value = first.value if isinstance(first, (ast.Assign, ast.Expr)) else None
            if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "print":
                value = value.args[0]
            return ToolOutcome("ok", str(_value(value)))
        except (SyntaxError, ValueError, IndexError) as error:
            return ToolOutcome("error", f"{type(error).__name__}: {error}")


def _value(node: ast.AST | None) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "abs":
        return abs(_value(node.args[0]))
    raise ValueError("not arithmetic")


def configuration(folder: Path, url: str, questions: int) -> TreadleConfig:
    """Return the configuration of the run of one size, over the world in `folder`."""
    world = folder / "world"
    sources = {row["source"] for row in map(orjson.loads, (world / "questions.jsonl").read_text().splitlines())}
    math = {"world-compute", "world-arithmetic"}
    return load_config(
        TreadleConfig,
        data={
            "flow": {"stages": ["pools"]},
            "pools": {"max_questions": questions},
            "models": {
                "tutor": {
                    "model": "treadle-tutor-noisy",
                    "tokenizer": str(write_byte_tokenizer(folder / "tokenizer")),
                    "endpoints": [{"url": url}],
                }
            },
            "questions": {
                "sources": [{"path": str(world / "questions.jsonl"), "source_field": "source", "split_field": "split"}],
                "domains": {name: "math" if name in math else "qa" for name in sorted(sources)},
            },
            "environment": {
                "max_turns": 6,
                "search": {
                    "corpus": [str(world / "corpus.jsonl")],
                    "cache_folder": str(folder / "indexes"),
                    "top_n": 1,
                    "document_chars": 200,
                },
            },
        },
    )


def make(folder: Path, url: str, questions: int) -> dict[str, Any]:
    """Run one size and return its costs."""
    real = kind.make_tools

    def with_stub(settings: QuestionSettings, *given: Any, **options: Any) -> list[Tool]:
        return [Arithmetic(), *(tool for tool in real(settings, *given, **options) if tool.name != "python")]

    kind.make_tools = with_stub
    asked, pools = flow_instances(configuration(folder, url, questions))
    root = folder / f"root-{questions}"
    run = Run.create(root, "r", {}, {})
    execute(asked, run)
    times = MemoryTimes(max(questions // 8, 1))
    before, began = _cpu_s(), time.perf_counter()
    record = execute(pools, run, progress=times)
    tokens = sum(role["prompt_tokens"] + role["completion_tokens"] for role in record.metrics["usage"].values())
    return {
        "questions": record.metrics["num_questions"],
        "trajectories": record.metrics["num_trajectories"],
        "calls": sum(role["calls"] for role in record.metrics["usage"].values()),
        "tokens": tokens,
        "cpu_s": _cpu_s() - before,
        "seconds": time.perf_counter() - began,
        "resident_kib": times.resident_kib,
        "peak_kib": memory_kib("VmHWM"),
        "bytes": sum(path.stat().st_size for path in (root / "artifacts" / "pools").rglob("*.parquet")),
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def figures_of(found: list[dict[str, Any]]) -> list[Figure]:
    """Return figures per question, and their change from the smallest to the largest size."""
    figures = []
    for one in found:
        number = one["questions"]
        figures += [
            Figure(name=f"{number:,} questions: CPU of each", value=1e3 * one["cpu_s"] / number, unit="ms"),
            Figure(name=f"{number:,} questions: model calls of each", value=one["calls"] / number, unit="calls"),
            Figure(name=f"{number:,} questions: tokens of each", value=one["tokens"] / number, unit="tokens"),
            Figure(name=f"{number:,} questions: trajectories of each", value=one["trajectories"] / number, unit=""),
            Figure(name=f"{number:,} questions: bytes of parquet of each", value=one["bytes"] / number, unit="bytes"),
            Figure(name=f"{number:,} questions: peak memory", value=one["peak_kib"] / KIB, unit="MiB"),
        ]
    first, last = found[0], found[-1]
    more = last["questions"] - first["questions"]
    if more:
        cpu = (last["cpu_s"] / last["questions"]) / (first["cpu_s"] / first["questions"])
        slope = (last["peak_kib"] - first["peak_kib"]) * KIB / more
        figures += [
            Figure(name="CPU of a question, largest relative to smallest", value=cpu, at_most=1.15),
            Figure(name="memory that a further question takes", value=slope, unit="bytes", at_most=4096),
        ]
    return figures


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, nargs="+", default=SIZES, metavar="N", help="sizes, smallest first")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    add_json_option(parser)
    options = parser.parse_args()
    if options.child:
        folder, url, number = options.child
        print(json.dumps(make(Path(folder), url, int(number))))
        return
    found = []
    with tempfile.TemporaryDirectory() as work, tutor(write_byte_tokenizer(Path(work) / "tokenizer")) as url:
        most = max(options.questions)
        write_world(Path(work) / "world", documents=max(40 * most, 1000), questions=most, tiers=(0, 1))
        for number in options.questions:
            command = [sys.executable, "-m", "benchmarks.rollouts.flywheel", "--child", work, url, str(number)]
            said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
            found.append(json.loads(said.splitlines()[-1]))
    publish(figures_of(found), options.json)


if __name__ == "__main__":
    main()
