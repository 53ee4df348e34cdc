"""Measure the trajectory viewer with many trajectories: start, pages, and a full text search.

    python -m benchmarks.runs.viewer [--trajectories 50000] [--json]

Measures CPU time of the process, all threads together, which depends little on other programs on the machine. Requests
are made in-process, without a network. Each trajectory has three calls with results, about 6,000 characters in all, and
1,500 token ids.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.parts.figures import Figure, add_json_option, publish
from treadle.core.config import Section
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import Table
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES
from treadle.tasks.inspection.lineage import trace_back
from treadle.viewer.app import make_app

SAMPLES = 4
TEXTS = 4_000
FILTERS = (
    "verdict=wrong", "tools=error", "dataset=world-2&verdict=right", "status=max_turns&sort=-tokens", "sort=score",
    "page=200", "verdict=wrong&tools=timeout&dataset=world-1", "status=answered&page=7&sort=-calls",
)  # fmt: skip


def traced(run: Run, key: str) -> list[dict[str, Any]]:
    """Return the lineage of a trajectory as the command `treadle view` gives it to the viewer."""
    return [step.as_dict() for step in trace_back(run, key)]


def texts(number: int, length: int, generator: random.Random) -> list[str]:
    """Return texts of made-up words with about `length` characters."""
    words = ["".join(generator.choices("etaoinshrdlucm", k=generator.randint(2, 9))) for _ in range(8_000)]
    return [" ".join(generator.choices(words, k=length // 6)) for _ in range(number)]


def rows_of(table: Table, number: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `questions`, `rollouts` or `scores`, the same in every call."""
    empty: dict[str, Any] = {"string": "", "double": 0.0, "bool": False}
    base = {
        field.name: None if field.nullable else [] if "list" in str(field.type) else empty.get(str(field.type), 0)
        for field in table.schema
    }
    generator = random.Random(0)
    thoughts, results = texts(TEXTS, 400, generator), texts(TEXTS, 1_400, generator)
    ids = [generator.randrange(50_000) for _ in range(3_000)]
    sample = {"prompt_ids": [], "training_prompt_ids": None, "origins": [1] * 1_500, "turn_starts": [], "spans": []}
    for place in range(number // SAMPLES if table.kind == "questions" else number):
        question = place if table.kind == "questions" else place // SAMPLES
        row = base | {"question_key": f"{question:016x}", "dataset": f"world-{question % 5}", "domain": "qa"}
        if table.kind == "questions":
            asked = f"Which {thoughts[place % TEXTS][:80]}?"
            yield row | {
                "question": asked, "answers": ["Ilme"], "split": "heldout", "source_file": "w", "meta": "{}",
                "payload": "{}",
            }  # fmt: skip
            continue
        row |= {"rollout_key": f"{place:016x}", "model": "base", "sample_index": place % SAMPLES}
        row["status"] = generator.choices(("answered", "max_turns", "no_answer"), (8, 1, 1))[0]
        if table.kind == "scores":
            right = generator.random() < 0.5
            yield row | {
                "prediction": "Ilme",
                "correct": right,
                "score": float(right),
                "scorer": "qa_f1",
                "judges": "{}",
            }
            continue
        yield (
            row | _rollout(generator, thoughts, results) | {"samples": [sample | {"ids": ids[place % 1_500 :][:1_500]}]}
        )


def _rollout(generator: random.Random, thoughts: Sequence[str], results: Sequence[str]) -> dict[str, Any]:
    parts, calls = [], []
    for turn in range(3):
        parts += [("think", generator.choice(thoughts)), ("search", generator.choice(thoughts)[:60])]
        parts += [("result", generator.choice(results))]
        status = generator.choices(("ok", "error", "timeout"), (18, 1, 1))[0]
        calls.append(
            {"tool": "search", "argument": parts[-2][1], "status": status, "turn": turn, "result_chars": 1_400}
        )
    parts += [("think", generator.choice(thoughts)), ("answer", "It is the Ilme.")]
    failed = sum(call["status"] != "ok" for call in calls)
    marked = [{"kind": kind, "text": f"<{kind}>{text}</{kind}>", "start": 0, "end": 0} for kind, text in parts]
    return {
        "operator": "rollout", "segments": json.dumps(marked), "text": "".join(part["text"] for part in marked),
        "tool_calls": json.dumps(calls), "calls_requested": 3, "calls_executed": 3, "num_turns": 4,
        "tools": [{"tool": "search", "requested": 3, "executed": 3, "failed": failed}],
        "failed_calls": failed, "completion_tokens": generator.randint(200, 900),
    }  # fmt: skip


def put(run: Run, address: str, table: Table, number: int, inputs: dict[str, str]) -> None:
    """Run a stage that writes the rows as the output of an instance."""

    def write(context: StageContext) -> dict[str, Any]:
        for row in rows_of(table, number):
            context.write(table.kind, [row])
        return {}

    place = Address.parse(address)
    stage = Stage(
        name=place.stage, version=1, settings=Section, consumes={kind: kind for kind in inputs}, produces=(table,),
        run=write,
    )  # fmt: skip
    made_from = {kind: (Address.parse(source),) for kind, source in inputs.items()}
    execute(Instance(address=place, stage=stage, settings=Section(), inputs=made_from), run)


class AppClient:
    """Client that calls an application in this process."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()

    def get(self, path: str, query: str = "") -> float:
        """Return the CPU seconds of a request. Raise ValueError unless its status is 200."""
        status, path_only = [], path.encode()
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": path, "raw_path": path_only, "query_string": query.encode(), "root_path": "",
            "headers": [(b"host", b"127.0.0.1")], "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            status.append(message.get("status", 200))

        started = time.process_time()
        self._loop.run_until_complete(self._app(scope, receive, send))
        seconds = time.process_time() - started
        if status[0] != 200:
            raise ValueError(f"{path}?{query}: status {status[0]}")
        return seconds


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def measure(run: Run, number: int) -> list[Figure]:
    """Measure all figures of a run with this many trajectories."""
    asked = AppClient(make_app(Run.open(str(run.storage.location()), run.run_id), traced))
    first = asked.get("/")
    # Small samples do not have as many pages.
    filters = [asked.get("/", query) for query in FILTERS if "page=" not in query or number >= 50_000]
    again = statistics.median(asked.get("/", FILTERS[0]) for _ in range(5))
    generator = random.Random(1)
    keys = [f"{generator.randrange(number):016x}" for _ in range(40)]
    asked.get(f"/trajectory/1/rollouts@base/{keys[0]}")  # The first request hashes the file.
    pages = [asked.get(f"/trajectory/1/rollouts@base/{key}", "verdict=wrong") for key in keys]
    neighbours = [asked.get(f"/trajectory/1/rollouts@base/{place:016x}") for place in range(20)]
    search, search_again = asked.get("/", "q=no+such+words"), asked.get("/", "q=no+such+words&verdict=wrong")
    return [
        Figure(name="start to the first page: CPU", value=first, unit="s", at_most=2.0),
        Figure(name="a new filter: CPU, median", value=1e3 * statistics.median(filters), unit="ms", at_most=50),
        Figure(name="a new filter: CPU, most", value=1e3 * max(filters), unit="ms", at_most=100),
        Figure(name="a list seen before: CPU, median", value=1e3 * again, unit="ms", at_most=50),
        Figure(name="any trajectory: CPU, median", value=1e3 * statistics.median(pages), unit="ms", at_most=100),
        Figure(name="any trajectory: CPU, p95", value=1e3 * percentile(pages, 0.95), unit="ms", at_most=300),
        Figure(
            name="the next trajectory: CPU, median", value=1e3 * statistics.median(neighbours), unit="ms", at_most=50
        ),
        Figure(name="search through all texts: CPU", value=search, unit="s", at_most=3.0),
        Figure(name="filter of what was searched: CPU", value=1e3 * search_again, unit="ms", at_most=100),
    ]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=50_000)
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder), "benchmark", {}, {})
        put(run, "1/questions", QUESTIONS, options.trajectories, {})
        put(run, "1/rollouts@base", ROLLOUTS, options.trajectories, {})
        put(run, "1/scores@base", SCORES, options.trajectories, {"rollouts": "1/rollouts@base"})
        publish(measure(run, options.trajectories), options.json)


if __name__ == "__main__":
    main()
