"""Run all benchmarks one after another and print one table of figures with their target bounds.

    python -m benchmarks.run                        # the sizes of docs/measurements.md
    python -m benchmarks.run --sample               # small sizes: whether they work, not how fast
    python -m benchmarks.run --only journal harness --output figures.json

Each is a command of its own with `--help`. They need an otherwise idle machine. A missed bound is shown, but does not
make this command fail, since machines differ. Only a benchmark that breaks does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.parts.figures import Figure, table
from treadle.core.runs.provenance import git_state, package_versions

HERE = Path(__file__).parent
MAX_SCRIPT_S = 3600.0
"""Timeout of a benchmark."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Command of one benchmark, and the figures taken from its output."""

    script: str
    whole: tuple[str, ...]
    """Arguments of the full measurement."""
    sample: tuple[str, ...]
    """Arguments of the sample."""
    figures: Callable[[Any], list[Figure]]
    """Converts the JSON that the command prints."""


def harness(found: Any) -> list[Figure]:
    """Return CPU and throughput relative to bare aiohttp."""
    engine, pool = found["engine"], found["pool"]
    return [
        Figure(name="engine: CPU per rollout", value=engine["cpu_ms"], unit="ms"),
        Figure(name="engine: CPU relative to bare aiohttp", value=engine["cpu_ratio"], at_most=5.0),
        Figure(name="engine: throughput relative to bare aiohttp", value=engine["rate_ratio"], at_least=0.85),
        Figure(name="dialogue: CPU relative to engine", value=found["dialogue_ratio"], at_most=1.15),
        Figure(name="pool alone: CPU relative to bare aiohttp", value=pool["cpu_ratio"], at_most=2.0),
    ]


def held(found: Any) -> list[Figure]:
    """Return memory of rollouts in flight."""
    return [
        Figure(name="most requests at once", value=found["held_stage"]["on_the_wire"], unit="requests", at_least=4000),
        Figure(name="memory of a rollout", value=found["held_stage"]["kib_each"], unit="KiB", at_most=64.0),
        Figure(name="memory of a dialogue", value=found["held_dialogue"]["held_kib_each"], unit="KiB", at_most=64.0),
        Figure(name="memory of a request of bare aiohttp", value=found["held_bare"]["kib_each"], unit="KiB"),
    ]


def flat(found: Any) -> list[Figure]:
    """Return memory growth with finished rollouts."""
    return [
        Figure(name="growth per rollout done", value=found["bytes_each"], unit="bytes", at_most=300.0),
        Figure(name="of which the journal's index", value=found["journal_index_bytes_each"], unit="bytes"),
        Figure(name="peak with the artifact", value=found["many"]["peak_mib"], unit="MiB"),
    ]


def resume(found: Any) -> list[Figure]:
    """Return time and memory from process start to the first new request."""
    figures = []
    for cache in ("cold", "warm"):
        here = found[cache]
        figures += [
            Figure(name=f"first new request, {cache}", value=here["seconds"], unit="s", at_most=10.0),
            Figure(name=f"plain reading of the same files, {cache}", value=here["reading_plainly_s"], unit="s"),
            Figure(name=f"memory until then, {cache}", value=here["peak_mib"], unit="MiB", at_most=1024.0),
        ]
    return figures


def journal(found: Any) -> list[Figure]:
    """Return figures of appending and opening."""
    opened = found["open_cold"]
    return [
        Figure(name="appends relative to raw grouped writes", value=found["append"]["ratio"], at_least=1 / 3),
        Figure(name="opened from disk", value=opened["seconds"], unit="s", at_most=10.0),
        Figure(name="memory when open", value=opened["peak_mib"], unit="MiB", at_most=1024.0),
    ]


def compaction(found: Any) -> list[Figure]:
    """Return figures of writing rows into an artifact."""
    return [
        Figure(name="rows relative to plain pyarrow", value=found["ratio"], at_least=1 / 3),
        Figure(name="growth of memory", value=found["grown_mib"], unit="MiB"),
    ]


def sandbox(found: Any) -> list[Figure]:
    """Return hand-out latency and CPU cost of programs."""
    return [
        Figure(name="hand-out: p50", value=found["hand-out"]["p50_ms"], unit="ms", at_most=20.0),
        Figure(name="whole call: p50", value=found["whole call"]["p50_ms"], unit="ms"),
        *(
            Figure(name=f"CPU of a {kind} program", value=cpu, unit="s")
            for kind, cpu in found["CPU s per call"].items()
        ),
        Figure(
            name="16 programs of 1 s: wall time", value=found["16 programs of 1 s"]["wall_s"], unit="s", at_most=3.0
        ),
        Figure(
            name="16 programs of 1 s: longest delay of the event loop",
            value=found["16 programs of 1 s"]["longest_loop_delay_ms"],
            unit="ms",
            at_most=100.0,
        ),
        Figure(name="memory of a warm sandbox", value=found["warm sandbox"]["pss_mib"], unit="MiB"),
    ]


def chaos(found: Any) -> list[Figure]:
    """Return figures of rollouts against failing servers."""
    return [
        Figure(name="ended properly", value=100 * found["proper_share"], unit="%", at_least=99.9),
        Figure(name="retries per fault", value=found["retries_per_fault"], at_most=1.2),
        Figure(name="rollouts/s relative to those without faults", value=found["goodput"], at_least=0.85),
    ]


def retrieval(found: Any) -> list[Figure]:
    """Return recall of word search on named documents, and its cost relative to the reference."""
    ours, reference = found["tantivy"], found["bm25s"]
    return [
        Figure(name="named documents found", value=ours["recall_named"], unit="of 1"),
        Figure(name="of those that bm25s finds", value=ours["recall_named"] / reference["recall_named"], at_least=0.99),
        Figure(name="rankings like those of bm25s", value=found["same_ranking"], unit="of 1"),
        Figure(name="CPU per query: p50", value=ours["cpu_p50_ms"], unit="ms"),
        Figure(name="CPU per query: p99", value=ours["cpu_p99_ms"], unit="ms"),
        Figure(name="time per query: p99", value=ours["p99_ms"], unit="ms"),
        Figure(
            name="queries per CPU second relative to bm25s", value=_relative_to(ours, reference, "queries_per_cpu_s")
        ),
        Figure(name="CPU of the build relative to bm25s", value=_relative_to(ours, reference, "build_cpu_s")),
        Figure(name="cold start to the first answer", value=ours["cold_load_s"], unit="s", at_most=2.0),
    ]


def _relative_to(ours: dict[str, float], reference: dict[str, float], name: str) -> float:
    return ours[name] / reference[name]


def peers(found: Any) -> list[Figure]:
    """Return CPU per item of peers relative to Treadle, and the calls they repeat after a kill."""
    if failed := [row["reason"] for row in found["results"] if row["peer"] == "treadle" and "reason" in row]:
        raise ValueError(f"Treadle itself: {failed[0]}")
    figures = []
    own = {row["kind"]: row["cost"] for row in found["results"] if row["peer"] == "treadle" and "cost" in row}
    for row in found["results"]:
        name = f"{row['peer']} {row['version']}, {row['kind']}"
        if "cost" in row:
            figures.append(Figure(name=f"{name}: CPU per item", value=row["cost"]["cpu_ms"], unit="ms"))
            if row["peer"] != "treadle" and row["kind"] in own:
                ratio = row["cost"]["cpu_ms"] / own[row["kind"]]["cpu_ms"]
                figures.append(Figure(name=f"{name}: CPU relative to Treadle", value=ratio))
        if "kill" in row:
            share = 100 * row["kill"]["repeated"] / row["kill"]["answered_before"]
            figures.append(Figure(name=f"{name}: answers asked for again after a kill", value=share, unit="%"))
    return figures


def web_record(found: Any) -> list[Figure]:
    """Return figures of web entries: adding to a run's store, exporting as artifact, unpacking."""
    return [
        Figure(name="added to a store, one thread", value=found["adds_per_s"], unit="entries/s"),
        Figure(name="the same from four threads", value=found["adds_per_s_4_threads"], unit="entries/s"),
        Figure(name="all listed, read and exported", value=found["export_s"], unit="s"),
        Figure(name="the artifact", value=found["artifact_mib"], unit="MiB"),
        Figure(name="unpacked", value=found["unpack_s"], unit="s"),
        Figure(name="opened again", value=found["open_again_ms"], unit="ms"),
        Figure(name="one look-up", value=found["look_up_ms"], unit="ms"),
    ]


def published(found: Any) -> list[Figure]:
    """Return the figures of a benchmark that prints figures with bounds itself."""
    return [Figure(**fields) for fields in found]


BENCHMARKS = {
    "command_line": Benchmark("runs/command_line.py", (), ("--times", "1"), published),
    "harness": Benchmark(
        "rollouts/harness.py",
        ("--rollouts", "30000", "--repeat", "1"),
        ("--rollouts", "64", "--in-flight", "32", "--repeat", "1"),
        harness,
    ),
    "held": Benchmark("rollouts/scale.py", ("held",), ("held", "--in-flight", "50", "--delay", "0.2"), held),
    "flat": Benchmark("rollouts/scale.py", ("flat",), ("flat", "--rollouts", "64", "--first", "16"), flat),
    "resume": Benchmark("runs/resume.py", (), ("--rollouts", "200"), resume),
    "journal": Benchmark("runs/journal.py", (), ("--rollouts", "2000"), journal),
    "compaction": Benchmark("runs/compaction.py", (), ("--rollouts", "2000"), compaction),
    "flywheel": Benchmark("rollouts/flywheel.py", (), ("--questions", "8", "16"), published),
    "sandbox": Benchmark("rollouts/sandbox.py", (), ("--calls", "2"), sandbox),
    "chaos": Benchmark(
        "rollouts/chaos.py",
        (),
        ("--rollouts", "100", "--in-flight", "24", "--latency", "0.05", "--jitter", "0.1", "--outage", "2"),
        chaos,
    ),
    "over_sampling": Benchmark(
        "rollouts/over_sampling.py", (), ("--delay", "0.02", "--groups", "2", "--servers", "2"), published
    ),
    "planning": Benchmark("rollouts/planning.py", (), ("--unit-s", "0.01", "--times", "5"), published),
    "retrieval": Benchmark(
        "search/retrieval.py", ("sparse", "--documents", "100000"), ("sparse", "--documents", "1000"), retrieval
    ),
    "retriever_service": Benchmark(
        "search/retriever_service.py",
        (),
        ("--documents", "1000", "--requests", "200", "--seconds", "1", "--rate", "50", "--soak", "200"),
        published,
    ),
    "environment_service": Benchmark(
        "rollouts/environment_service.py",
        (),
        ("--instances", "4", "--seconds", "1", "--steps", "64", "--held", "64"),
        published,
    ),
    "dense_search": Benchmark(
        "search/dense_search.py", (), ("--documents", "1000", "--dimension", "32", "--queries", "128"), published
    ),
    "index_memory": Benchmark("search/index_memory.py", (), ("--documents", "2000", "--dimension", "32"), published),
    "question_intake": Benchmark("runs/question_intake.py", (), ("--questions", "40", "--large", "100"), published),
    "selection": Benchmark(
        "training/selection.py", (), ("--questions", "400", "--staged", "200", "--pairs", "100"), published
    ),
    "web_search": Benchmark(
        "search/web_search.py", (), ("--rollouts", "4", "--latency", "0.05", "--page-kb", "5"), published
    ),
    "web_record": Benchmark("search/web_record.py", (), ("--entries", "200"), web_record),
    "viewer": Benchmark("runs/viewer.py", (), ("--trajectories", "400"), published),
    "orchestration": Benchmark("runs/orchestration.py", (), ("--phases", "1", "--questions", "8"), published),
    "peers": Benchmark(
        "peers/compare.py",
        ("--rollouts", "1024"),
        ("--no-install", "--rollouts", "16", "--in-flight", "8", "--only", "treadle", "--kind", "tools"),
        peers,
    ),
}


def run_one(name: str, sample: bool) -> list[Figure]:
    """Run one benchmark and return its figures. Raise CalledProcessError if it breaks."""
    benchmark = BENCHMARKS[name]
    arguments = benchmark.sample if sample else benchmark.whole
    command = [sys.executable, str(HERE / benchmark.script), *arguments, "--json"]
    environ = os.environ | {"PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=MAX_SCRIPT_S, env=environ)
    return benchmark.figures(json.loads(done.stdout.splitlines()[-1]))


def write_figures(path: Path, figures: dict[str, list[Figure]], sample: bool) -> None:
    """Write the figures to a JSON file, with versions and machine."""
    facts = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sample": sample,
        "commit": git_state(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "packages": package_versions(),
        "figures": {name: [asdict(figure) for figure in found] for name, found in figures.items()},
    }
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks and print their figures. Return 1 if one broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(BENCHMARKS), default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--sample", action="store_true", help="small sizes: whether it works, not how fast")
    parser.add_argument("--output", type=Path, help="write the figures with versions and machine to this JSON file")
    options = parser.parse_args(arguments)
    figures: dict[str, list[Figure]] = {}
    broken = []
    for number, name in enumerate(options.only, 1):
        print(f"[{number}/{len(options.only)}] {name} ...", flush=True)
        started = time.monotonic()
        try:
            figures[name] = run_one(name, options.sample)
        except (subprocess.SubprocessError, ValueError, LookupError) as error:
            broken.append(name)
            print(f"{name} broke: {error!r}; its output is above\n", flush=True)
            continue
        print(f"{table(figures[name])}\n({time.monotonic() - started:.0f} s)\n", flush=True)
        if options.output:
            write_figures(options.output, figures, options.sample)
    missed = [f"{name}: {one.name}" for name, found in figures.items() for one in found if not one.is_reached]
    if broken:
        print(f"broke: {', '.join(broken)}")
    print(f"missed: {', '.join(missed)}" if missed else "all figures are within their bounds")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
