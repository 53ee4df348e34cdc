"""What a run would do, and why, without doing it. Prefect-free."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from treadle.core.config import differing_keys, semantic_dump
from treadle.core.execute import Plan, state_of
from treadle.core.runs import Run, run_exists
from treadle.core.stage import Instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.forced import still_to_make

_SHOWN_KEYS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """What would happen to one instance."""

    address: str
    action: Plan
    why: str


def plan(instances: Sequence[Instance], root: str | Path, run_id: str, *, force: bool = False) -> list[Step]:
    """One step per instance, in their order; nothing is changed."""
    if not run_exists(root, run_id):
        return [Step(str(item.address), "run", "the run is new") for item in instances]
    run = Run.open(root, run_id)
    forced = (still_to_make(run, [item.address for item in instances]) if force else None) or ()
    cut_off = bool(forced)
    steps: dict[str, Step] = {}
    for item in instances:
        address, running = str(item.address), {step.address for step in steps.values() if step.action == "run"}
        producers = [str(producer) for producers in item.inputs.values() for producer in producers]
        if force and (not cut_off or item.address in forced):
            steps[address] = Step(address, "run", "--force" + (", going on where it was cut off" if cut_off else ""))
        elif first := running.intersection(producers):
            steps[address] = Step(address, "run", f"{min(first)} is run before it")
        else:
            action = state_of(item, run)
            steps[address] = Step(address, action, _why(item, run, action, cut_off))
    return list(steps.values())


def _why(item: Instance, run: Run, action: Plan, cut_off: bool) -> str:
    if action == "reuse":
        return "made again already by the forced run that was cut off" if cut_off else "nothing changed"
    record = run.record(item.address)
    if action == "missing input":
        producers = [str(producer) for producers in item.inputs.values() for producer in producers]
        return f"run {', '.join(_without_record(producers, run))} first"
    if record is None:
        status = run.status(item.address)
        if status.num_finished:
            return f"goes on: {status.num_finished:,} finished in the journal of an attempt that {status.state}"
        return "not made yet" if status.state == "absent" else f"not made yet: its last attempt {status.state}"
    if changed := differing_keys(record.settings, semantic_dump(item.settings)):
        keys = [line.split(": ", 1)[0] for line in changed]
        more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
        return f"changed: {', '.join(keys[:_SHOWN_KEYS])}{more}"
    for ref in (ref for refs in record.inputs.values() for ref in refs):
        producer = next((made for made in run.records() if made.address == ref.address), None)
        if producer is not None and producer.outputs.get(ref.artifact.kind) != ref.artifact:
            return f"{ref.address} was made anew"
    if record.version != item.stage.version:
        return f"stage version {record.version} -> {item.stage.version}"
    if not item.stage.is_whole(record.metrics):
        return "what was accepted as missing is asked for again"
    return "an artifact is missing or damaged"


def _without_record(addresses: Sequence[str], run: Run) -> Collection[str]:
    made = {record.address for record in run.records()}
    return [address for address in addresses if address not in made]


def keys_set(config: TreadleConfig) -> list[str]:
    """`key = value` of every key that is not at its default, one line each."""
    return list(_flat(config.model_dump(mode="json", exclude_defaults=True), ""))


def changed_keys(
    config: TreadleConfig, semantic: Mapping[str, Any], root: str | Path, run_id: str
) -> tuple[list[str] | None, bool]:
    """What differs from an existing run's configuration (None: there is no such run), and if the run refuses that."""
    if not run_exists(root, run_id):
        return None, False
    run = Run.open(root, run_id)
    before, now = run.config(), config.model_dump(mode="json")
    if not before.get("flow", {}).get("models"):
        now["flow"]["models"] = []  # They were found then, and are the same: see `as_begun`.
    changed = differing_keys(before, now)
    locked = differing_keys(run.info.semantic, orjson.loads(orjson.dumps(semantic, default=str)), TreadleConfig)
    return changed, bool(locked) and not run.is_untouched()


def _flat(tree: Any, prefix: str) -> Iterator[str]:
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield f"{prefix} = {orjson.dumps(tree).decode()}"
