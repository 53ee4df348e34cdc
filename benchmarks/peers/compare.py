"""Compare Treadle with its peers: each does the same work against the same server, one after the other.

    python benchmarks/peers/compare.py                                 everything
    python benchmarks/peers/compare.py --only treadle inspect --rollouts 512 --json
    python benchmarks/peers/compare.py --no-install                    only what is installed; lists what is not

Work `tools`: rollouts of three model calls and two tool calls (treadle, inspect, verifiers). Work `rows`: one call per
row (treadle, distilabel, curator, data_designer). The server responds to each call after `--delay` seconds; the tools
return a text at once. Every peer runs as its documentation recommends, with its limits raised to `--in-flight`, without
displays and telemetry, in an environment of its own with the versions of requirements-<name>.txt.

- cost: the work is done twice, for `--in-flight` and for `--rollouts` items. The difference gives CPU per item (user
  and system, all processes) and items per second, without start-up, which is listed separately.
- kill: the process group gets SIGKILL when half of all responses have been sent, and is resumed in the tool's own way.
  A repeated call is one whose response had been sent in full before the kill, and that was sent and answered again.

Each peer has its own home folder, and proxies that lead nowhere: only the server and, for installing, pip's index are
reachable.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import repeats
import running
import work
from peer_environments import PEERS, NotInstalled, Peer, python_of

from treadle.core.engines.cache import cache_root

_UNITS = {work.TOOLS: "rollout", work.ROWS: "row"}


def cost(job: running.PeerJob, server: running.PeerServer) -> dict[str, float]:
    """Measure the cost of the work, per item and for the start."""
    folder = job.folder
    few = running.run(dataclasses.replace(job, num_items=job.in_flight, folder=folder / "few"), server)
    many = running.run(dataclasses.replace(job, folder=folder / "many"), server)
    more = job.num_items - job.in_flight
    cpu_s = (many.cpu_s - few.cpu_s) / more
    return {
        "cpu_ms": 1e3 * cpu_s,
        "start_cpu_s": few.cpu_s - job.in_flight * cpu_s,
        "per_s": more / (many.wall_s - few.wall_s),
        "whole_cpu_ms": 1e3 * many.cpu_s / job.num_items,
        "whole_s": many.wall_s,
        "peak_mib": many.peak_mib,
    }


def kill(job: running.PeerJob, server: running.PeerServer, delay_s: float) -> dict[str, int]:
    """Measure the cost of a kill at half of the responses."""
    job = dataclasses.replace(job, folder=job.folder / "kill")
    num_calls = work.NUM_CALLS[job.kind]
    start = server.num_answers()
    running.run(job, server, kill_at=start + job.num_items * num_calls // 2)
    gone = server.num_answers()
    time.sleep(delay_s + 0.5)  # the server drops its pending responses to the killed process
    resumed = server.num_answers()
    outcome = running.run(job, server, resume=True)
    before, after = server.answers(start, gone), server.answers(resumed)
    assert outcome.items is not None
    return dataclasses.asdict(repeats.cost_of(before, after, outcome.items, job.num_items, num_calls))


def measure(
    peer: Peer, kind: str, server: running.PeerServer, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Return all figures of one peer for one kind of work, or the reason why there are none."""
    result: dict[str, Any] = {"peer": peer.name, "kind": kind, "version": peer.version()}
    try:
        python = python_of(peer, options.envs, install=not options.no_install)
        job = running.PeerJob(python, peer.script, kind, options.rollouts, options.in_flight, folder)
        if options.part != "kill":
            rounds = []
            for number in range(options.repeat):
                rounds.append(cost(dataclasses.replace(job, folder=folder / str(number)), server))
            result["cost"] = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        if options.part != "cost":
            result["kill"] = kill(job, server, options.delay)
    except (NotInstalled, running.PeerFailed) as error:
        result["reason"] = str(error)
    return result


def show(results: list[dict[str, Any]], kind: str) -> None:
    """Print the table of one kind of work."""
    rows = [result for result in results if result["kind"] == kind]
    unit = _UNITS[kind]
    own = next((row["cost"] for row in rows if row["peer"] == "treadle" and "cost" in row), None)
    print(f"\n{kind}: {work.NUM_CALLS[kind]} calls per {unit}")
    print(f"| | CPU ms per {unit} | × Treadle | {unit}s/s | × Treadle | CPU s to start | peak MiB |")
    print("|---|---|---|---|---|---|---|")
    for row in (row for row in rows if "cost" in row):
        figures = row["cost"]
        ratios = [figures[key] / own[key] if own else float("nan") for key in ("cpu_ms", "per_s")]
        print(
            f"| {row['peer']} {row['version']} | {figures['cpu_ms']:.2f} | {ratios[0]:.2f} | {figures['per_s']:.1f} "
            f"| {ratios[1]:.2f} | {figures['start_cpu_s']:.1f} | {figures['peak_mib']:.0f} |"
        )
    print(f"\n| killed at half | answered before | of these repeated | {unit}s lost | {unit}s duplicated |")
    print("|---|---|---|---|---|")
    for row in (row for row in rows if "kill" in row):
        figures = row["kill"]
        share = figures["repeated"] / figures["answered_before"]
        print(
            f"| {row['peer']} | {figures['answered_before']} of {figures['calls']} "
            f"| {figures['repeated']} ({share:.1%}) | {figures['rows_lost']} | {figures['rows_doubled']} |"
        )
    for row in (row for row in rows if "reason" in row):
        print(f"{row['peer']} {row['version']}: {row['reason']}")


def arguments() -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], help="peers (default: all)")
    parser.add_argument("--kind", nargs="+", choices=list(_UNITS), default=list(_UNITS), help="kinds of work")
    parser.add_argument("--part", choices=("both", "cost", "kill"), default="both", help="what to measure")
    parser.add_argument("--rollouts", type=int, default=2048, help="items of work (default %(default)s)")
    parser.add_argument("--in-flight", type=int, default=256, help="requests in flight (default %(default)s)")
    parser.add_argument("--delay", type=float, default=0.2, help="seconds per model call (default %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="rounds of `cost`; medians are shown (default 1)")
    parser.add_argument("--envs", type=Path, default=cache_root() / "peers", help="environments (default %(default)s)")
    parser.add_argument("--no-install", action="store_true", help="skip peers that are not installed, with a line")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    if options.rollouts < 2 * options.in_flight:
        parser.error("--rollouts must be at least twice --in-flight: the cost of starting is subtracted")
    return options


def main() -> None:
    """Measure and print."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exit normally, for cleanup
    results = []
    with tempfile.TemporaryDirectory() as name, running.serving(Path(name), options.delay) as server:
        for kind in options.kind:
            for peer in PEERS:
                if kind in peer.kinds and (not options.only or peer.name in options.only):
                    print(f"{kind}: {peer.name} {peer.version()}", file=sys.stderr)
                    results.append(measure(peer, kind, server, Path(name) / kind / peer.name, options))
                    print(json.dumps(results[-1]), file=sys.stderr)
    conditions = {
        "rollouts": options.rollouts,
        "in_flight": options.in_flight,
        "delay_s": options.delay,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    if options.json:
        print(json.dumps({**conditions, "results": results}))
        return
    print(", ".join(f"{key} {value}" for key, value in conditions.items()))
    for kind in options.kind:
        show(results, kind)


if __name__ == "__main__":
    main()
