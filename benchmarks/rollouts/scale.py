"""Measure memory at scale; each figure comes from a process of its own, its floor from the same run.

    python -m benchmarks.rollouts.scale held   [--in-flight 4000] [--delay 1.0]
    python -m benchmarks.rollouts.scale flat   [--rollouts 200000] [--first 8000]

- held: the stage `rollouts` with this many rollouts in flight against a server that takes `--delay` seconds for each of
  three turns, compared with bare aiohttp with the same bodies. The memory of a rollout is the peak resident memory
  until the last one is finished, minus that of the same process with 8 in flight, divided by their number. Target:
  at least 4,000 in flight, at most 64 KiB each. The same for dialogues of three turns, whose private memory is also
  measured while all wait for their partners and no request is on the wire. Target: at most 64 KiB each.
- flat: the stage against the tutor without latency, with real search and journal, 8 rollouts per question; each ends
  after one request and one search. Measures resident memory during the stage, and the peak with the artifact written.
  The floor is the journal's index alone: it grows by design, with one entry per finished rollout. Target: nothing else
  grows.

`--json` prints the figures as one JSON object instead. `--folder` is the folder for the files.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from benchmarks.parts import stub_partner, stub_server, stub_tools
from benchmarks.parts.measuring import KIB, MemoryTimes, measure, memory_kib, run_command
from benchmarks.parts.scale_runs import SAMPLES, make_run, rollouts_instance, tutor, world_of
from benchmarks.rollouts import harness
from treadle.agent import model_sessions as opening
from treadle.core.journal.journal import Journal
from treadle.core.llm.pool import ModelPool
from treadle.core.runs.execute import execute
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.embedded_model import embedded_tokenizer

FEW_ROLLOUTS = 8


def held_stage(folder: Path, url: str, num_rollouts: int, in_flight: int) -> dict[str, Any]:
    """Measure the stage with this many rollouts in flight."""
    return _held(folder, url, num_rollouts, in_flight, {}, "answered")


def held_dialogue(folder: Path, url: str, num_rollouts: int, in_flight: int) -> dict[str, Any]:
    """Measure the stage with this many dialogues in flight, which wait for each other in their last turn."""
    stub_partner.HeldPartner.barrier = asyncio.Barrier(in_flight)
    result = _held(folder, url, num_rollouts, in_flight, {"type": stub_partner.HELD_TYPE}, "finished")
    return {**result, "held_kib": stub_partner.HeldPartner.held_kib}


def _held(
    folder: Path, url: str, num_rollouts: int, in_flight: int, environment: dict[str, Any], status: str
) -> dict[str, Any]:
    pools: list[ModelPool] = []

    class CountingPool(ModelPool):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            pools.append(self)

    stub_tools.replace_tools(stub_server.RESULT_TEXT)
    opening.ModelPool = CountingPool
    run = make_run(folder, [harness.QUESTION.format(number=0)], num_rollouts)
    times = MemoryTimes(num_rollouts)
    tokenizer = write_byte_tokenizer(folder / "tokenizer")
    instance = rollouts_instance(tokenizer, url, stub_server.MODEL, environment, max_concurrent=in_flight)
    record = execute(instance, run, progress=times)
    assert record.metrics[f"status_{status}"] == num_rollouts
    in_flight_seen = pools[0].stats.peak_in_flight
    return {"peak_kib": times.peak_kib, "seconds": times.seconds, "on_the_wire": in_flight_seen}


def held_bare(folder: Path, url: str, num_rollouts: int, in_flight: int) -> dict[str, Any]:
    """Measure bare aiohttp, the floor of `held`."""
    requests = harness.prepared_requests(folder / "tokenizer")
    result = asyncio.run(harness.run_bare(url, num_rollouts, in_flight, requests))
    return {"peak_kib": memory_kib("VmHWM"), "seconds": result["wall"], "on_the_wire": in_flight}


def flat_stage(folder: Path, url: str, num_rollouts: int, first: int) -> dict[str, Any]:
    """Measure the stage until its artifact is written."""
    texts, environment = world_of(folder)
    run = make_run(folder, texts, num_rollouts // SAMPLES)
    options = {"samples_per_question": SAMPLES, "sampling": {"max_tokens": 256}}
    instance = rollouts_instance(embedded_tokenizer(), url, "treadle-tutor", {**environment, "max_turns": 1}, **options)
    times = MemoryTimes(first)
    record = execute(instance, run, progress=times)
    assert record.metrics["calls_executed"] == record.metrics["status_max_turns"] == num_rollouts
    return {
        "resident_kib": times.resident_kib,
        "peak_before_writing_kib": times.peak_kib,
        "peak_kib": memory_kib("VmHWM"),
        "seconds": times.seconds,
    }


def journal_index(folder: Path, num_rollouts: int) -> dict[str, Any]:
    """Return the memory of the journal's index alone for this many finished rollouts."""
    with Journal(folder / "index") as journal:
        journal.finish("f" * 16, b"{}")
        before = memory_kib("VmRSS")
        for number in range(num_rollouts):
            journal.finish(f"{number:016x}", b"{}")
        return {"bytes_each": (memory_kib("VmRSS") - before) * KIB / num_rollouts}


# The functions above run in processes of their own; the functions below are the commands.


def held(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure memory of rollouts in flight."""
    figures: dict[str, Any] = {"in_flight": options.in_flight, "delay_s": options.delay}
    with harness.stub(options.delay) as url:
        for name in ("held_bare", "held_stage", "held_dialogue"):
            few = measure(name, folder / f"{name}-few", url, 2 * FEW_ROLLOUTS, FEW_ROLLOUTS)
            many = measure(name, folder / f"{name}-many", url, options.in_flight, options.in_flight)
            grown = many["peak_kib"] - few["peak_kib"]
            figures[name] = {
                "handful_peak_mib": round(few["peak_kib"] / KIB, 1),
                "peak_mib": round(many["peak_kib"] / KIB, 1),
                "kib_each": round(grown / options.in_flight, 1),
                "on_the_wire": many["on_the_wire"],
                "rollouts_per_s": round(options.in_flight / many["seconds"], 1),
            }
            if "held_kib" in many:
                figures[name]["held_kib_each"] = round((many["held_kib"] - few["held_kib"]) / options.in_flight, 1)
    return figures


def flat(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure memory growth with finished rollouts."""
    figures: dict[str, Any] = {"rollouts": options.rollouts}
    index = measure("journal_index", folder, options.rollouts)
    with tutor(embedded_tokenizer()) as url:
        few = measure("flat_stage", folder / "few", url, options.first, options.first)
        many = measure("flat_stage", folder / "many", url, options.rollouts, options.first)
    resident = list(many["resident_kib"].values())
    figures["resident_mib"] = {int(done): round(kib / KIB, 1) for done, kib in many["resident_kib"].items()}
    for name, result in (("few", few), ("many", many)):
        figures[name] = {
            "peak_before_writing_mib": round(result["peak_before_writing_kib"] / KIB, 1),
            "peak_mib": round(result["peak_kib"] / KIB, 1),
            "seconds": round(result["seconds"], 1),
        }
    more = options.rollouts - options.first
    figures["bytes_each"] = round((resident[-1] - resident[0]) * KIB / more)
    figures["bytes_each_with_artifact"] = round((many["peak_kib"] - few["peak_kib"]) * KIB / more)
    figures["journal_index_bytes_each"] = round(index["bytes_each"])
    return figures


COMMANDS = {"held": held, "flat": flat}


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--in-flight", type=int, default=4000)
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=8000)
    run_command(
        parser,
        (held_stage, held_dialogue, held_bare, flat_stage, journal_index),
        lambda folder, options: COMMANDS[options.command](folder, options),
    )


if __name__ == "__main__":
    main()
