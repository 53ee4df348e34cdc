"""Measure what scheduling saves when tools really take time, and what it costs.

    python -m benchmarks.rollouts.planning [--unit-s 0.25] [--times 400]

The plan of the example of `docs/behaviour/planning.md` has calls of 2, 5, 4 and 1 units: one after the other they take
12, by levels 10, and as soon as their inputs are there 7. The episode of the environment runs them with a tool that
sleeps; times are relative to the calls one after the other in the same run. The cost is CPU time of this thread.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping

from benchmarks.parts.figures import Figure, add_json_option, publish
from treadle.agent.contract import EpisodeOptions, ModelTurn, StepContext, Task
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.environments.planning.batch import find_tags
from treadle.environments.planning.dialect import planning_dialect
from treadle.environments.planning.graph import MAX_NODES
from treadle.environments.planning.plan_text import parse_plan
from treadle.environments.planning.planned import call_dependencies
from treadle.environments.planning.runtime import PlanningRuntime
from treadle.environments.planning.scheduler import Scheduling, waits_for
from treadle.environments.planning.settings import PlanningSettings

UNITS = {"two": 2, "five": 5, "four": 4, "one": 1}
"""Duration of each query of the example."""
EXAMPLE = """<think>The tasks are known.</think><plan><graph>
<node id="a">search("two")</node>
<node id="b">search("five")</node>
<node id="c" depends="a">search("four")</node>
<node id="d" depends="b, c">search("one")</node>
</graph></plan>"""
CASES: Mapping[str, tuple[Scheduling, int]] = {
    "sequential": ("dataflow", 1),
    "levels": ("levels", 8),
    "dataflow": ("dataflow", 8),
}
"""Scheduling and most calls at once."""
DIALECT = planning_dialect("gap", ["wiki_search"], runs_plans=True)


class Sleeper:
    """Search tool that takes as many units as its query says."""

    name = "wiki_search"

    def __init__(self, unit_s: float) -> None:
        self._unit_s = unit_s

    async def __aenter__(self) -> Sleeper:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Sleep, and return a result."""
        seconds = UNITS[argument] * self._unit_s
        await asyncio.sleep(seconds)
        return ToolOutcome("ok", f"found {argument}", seconds)


async def batch_s(scheduling: Scheduling, max_parallel: int, unit_s: float) -> float:
    """Return the seconds that the calls of the example take."""
    settings = PlanningSettings(scheduling=scheduling, max_parallel_calls=max_parallel)
    episode = PlanningRuntime(settings, {"wiki_search": Sleeper(unit_s)}).episode()
    await episode.reset(Task("example", "When do they end?"), EpisodeOptions())
    turn = settings.turn_dialect.read(EXAMPLE, 0, "stop")
    began = time.perf_counter()
    observation = await episode.step(turn, StepContext(math.inf))
    took = time.perf_counter() - began
    assert [call.status for call in observation.calls] == ["ok"] * len(UNITS), observation
    return took


def turns() -> dict[str, str]:
    """Return turns with plans of as many tasks as are allowed, in both syntaxes; each needs the two before it."""
    lines, nodes, queries = [], [], []
    for number in range(1, MAX_NODES + 1):
        needed = [f"T{other}" for other in (number - 2, number - 1) if other > 0]
        query = f"year of birth of the director of film {number}"
        lines.append(f"T{number}: {query}\n- Dependencies: {', '.join(needed) or 'none'}")
        places = "".join(f", not {{{one}}}" for one in needed)
        nodes.append(f'<node id="T{number}" depends="{", ".join(needed)}">search("{query}{places}")</node>')
        queries.append(f"T{number}: {query}")
    return {
        "list": f"<plan>\n{chr(10).join(lines)}\n</plan><wiki_search>{' | '.join(queries)}</wiki_search>",
        "graph markup": f"<plan><graph>{chr(10).join(nodes)}</graph></plan>",
    }


def waiting(turn: ModelTurn) -> Mapping[str, frozenset[str]]:
    """Read the plan of a turn, and return what each of its calls waits for."""
    plan = parse_plan(find_tags(turn.text, ["plan"])[-1].body, DIALECT.plan_tools)
    calls = DIALECT.planned(turn, plan)
    depends_on = call_dependencies(calls, plan)
    found = waits_for(depends_on, "levels")
    assert len(calls) == len(found) == MAX_NODES
    return found


def median_cpu_ms(work: Callable[[], object], times: int) -> float:
    """Return the median CPU time of this thread in milliseconds."""
    took = []
    for _ in range(times):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return 1000 * statistics.median(took)


def main() -> None:
    """Parse the options, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unit-s", type=float, default=0.25, help="seconds of a unit of the example")
    parser.add_argument("--times", type=int, default=400, help="how often reading and scheduling are measured")
    add_json_option(parser)
    options = parser.parse_args()
    took = {name: asyncio.run(batch_s(*case, options.unit_s)) for name, case in CASES.items()}
    levels, dataflow = took["sequential"] / took["levels"], took["sequential"] / took["dataflow"]
    figures = [
        Figure(name="example, one call after the other", value=took["sequential"], unit="s"),
        Figure(name="by levels: how many times as fast", value=levels, at_least=1.18, at_most=1.22),
        Figure(name="dataflow: how many times as fast", value=dataflow, at_least=1.68, at_most=1.74),
    ]
    for syntax, text in turns().items():
        turn = DIALECT.read(text, 0, "stop")
        cpu_ms = median_cpu_ms(functools.partial(waiting, turn), options.times)
        figures.append(
            Figure(name=f"{MAX_NODES} tasks, {syntax}: read and scheduled, CPU", value=cpu_ms, unit="ms", at_most=1.0)
        )
    publish(figures, options.json)


if __name__ == "__main__":
    main()
