"""Plan a run: what each instance would do and why, without running anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from treadle.core.config import differing_keys, semantic_dump
from treadle.core.errors import RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import Plan, equal_result, planned_action, work_digest
from treadle.core.runs.locked_config import is_untouched
from treadle.core.runs.reused import counterparts
from treadle.core.runs.run import Run, run_exists
from treadle.core.runs.stage import Instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.forced_runs import imported_from, pending_forced, refusal, replaces_import
from treadle.tasks.planning.toml_lines import toml_lines

_SHOWN_KEYS = 3


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """Planned action for one instance."""

    address: str
    action: Plan | Literal["refuse"]
    why: str
    same: str = ""
    """Address of the instance of an earlier iteration whose result is reused."""


def plan(
    flow: Sequence[Instance],
    root: str | Path,
    run_id: str,
    *,
    part: Sequence[Instance] | None = None,
    force: bool = False,
    by_name: bool = False,
) -> list[PlannedStep]:
    """Return one step per instance of a flow, or of `part` of it, in their order; nothing is changed.

    `by_name`: the forced instances were named explicitly, so imported results are replaced too.
    """
    equals, wanted = equal_work(flow), flow if part is None else part
    if not run_exists(root, run_id):
        made = {str(item.address) for item in wanted}
        return [
            PlannedStep(text, "take over", f"the same as {equals[text]}", equals[text])
            if equals.get(text) in made
            else PlannedStep(text, "run", "the run is new")
            for text in (str(item.address) for item in wanted)
        ]
    planner = _Planner(flow, equals, Run.open(root, run_id))
    return planner.steps(wanted, force=force, by_name=by_name)


class _Planner:
    """Planner that walks the instances in order; each step depends on the steps of its producers."""

    def __init__(self, flow: Sequence[Instance], equals: Mapping[str, str], run: Run) -> None:
        self._flow = {str(item.address): item for item in flow}
        self._equals, self._run = equals, run
        self._steps: dict[str, PlannedStep] = {}

    def steps(self, wanted: Sequence[Instance], *, force: bool, by_name: bool) -> list[PlannedStep]:
        addresses = [item.address for item in wanted]
        left = pending_forced(self._run, addresses) if force and not by_name else None
        for item in wanted:
            file = imported_from(item.address, self._run) if force else None
            is_forced = force and (left is None or item.address in left) and (by_name or not file)
            self._steps[str(item.address)] = self._step(item, is_forced, left is not None, file)
        return list(self._steps.values())

    def _step(self, item: Instance, is_forced: bool, was_interrupted: bool, kept_file: str | None) -> PlannedStep:
        """Return the step of an instance; `kept_file`: file of its imported result, which a forced run keeps."""
        address, record = str(item.address), self._run.record(item.address)
        made = {step.address for step in self._steps.values() if step.action in ("run", "take over")}
        first = made.intersection(str(producer) for producers in item.inputs.values() for producer in producers)
        # An instance's own result is never replaced by an equal one of an earlier iteration.
        same = self._equals.get(address) if record is None or record.reused_from else None
        if same is not None and (same in made or ((is_forced or first) and self._is_kept(same))):
            return PlannedStep(address, "take over", f"the same as {same}", same)
        if is_forced:
            return PlannedStep(address, "run", "--force" + (", resuming where it stopped" if was_interrupted else ""))
        # Its producers run again only because of --force: an unchanged output leaves the import valid.
        if kept_file and first and all(map(self._is_current, first)):
            return PlannedStep(
                address, "reuse", f"imported from {kept_file}; refused unless {min(first)} gives the same output"
            )
        if first:
            run_before = [one for one in first if self._steps[one].action == "run"]
            why = f"{min(run_before)} is run before it" if run_before else f"{min(first)} is reused before it"
            return _unless_imported(PlannedStep(address, "run", why), item, self._run)
        action = planned_action(item, self._run)
        if kept_file and action == "reuse":
            return PlannedStep(address, "reuse", f"imported from {kept_file}")
        taken = equal_result(item, self._run) if action == "take over" else None
        step = PlannedStep(
            address, action, _why(item, self._run, action, was_interrupted), taken.address if taken is not None else ""
        )
        return _unless_imported(step, item, self._run)

    def _is_kept(self, address: str) -> bool:
        """Return whether the result of an instance exists and is kept."""
        return self._steps[address].action == "reuse" if address in self._steps else self._is_current(address)

    def _is_current(self, address: str) -> bool:
        """Return whether the result of an instance is up to date, so that only `--force` runs it again."""
        return planned_action(self._flow[address], self._run) == "reuse"


def _unless_imported(step: PlannedStep, item: Instance, run: Run) -> PlannedStep:
    """Return the step, or a refusal if it would replace an imported result."""
    if not replaces_import(item.address, run, step.action):
        return step
    return PlannedStep(step.address, "refuse", refusal(item.address, run, step.why))


def equal_work(instances: Sequence[Instance]) -> dict[str, str]:
    """Map addresses to the instance of an earlier iteration that does the same work.

    Only settings and inputs are compared. Results that turn out to be equal later are detected when they exist.
    """
    works: dict[Address, str] = {}
    equals: dict[str, str] = {}
    for item in instances:
        inputs = {
            name: [equals.get(str(producer), str(producer)) for producer in producers]
            for name, producers in item.inputs.items()
        }
        works[item.address] = work_digest(item, inputs)
        for earlier in counterparts(item):
            if works.get(earlier) == works[item.address]:
                equals[str(item.address)] = str(earlier)
                break
    return equals


def why_not_reused(item: Instance, run: Run) -> str:
    """Return why an instance would run again; empty if its result is reused."""
    action = planned_action(item, run)
    return "" if action == "reuse" else _why(item, run, action, was_interrupted=False)


def check_import(item: Instance, run: Run) -> None:
    """Raise RunError if running the instance would replace an imported result."""
    action = planned_action(item, run)
    if replaces_import(item.address, run, action):
        raise RunError(f"{item.address} {refusal(item.address, run, _why(item, run, action, was_interrupted=False))}")


def _why(item: Instance, run: Run, action: Plan, was_interrupted: bool) -> str:
    if action == "reuse":
        return "already run again by the interrupted forced run" if was_interrupted else "nothing changed"
    if action == "take over" and (same := equal_result(item, run)) is not None:
        return f"the same as {same.address}"
    record = run.record(item.address)
    if action == "missing input":
        producers = [str(producer) for producers in item.inputs.values() for producer in producers]
        return f"run {', '.join(_without_record(producers, run))} first"
    if record is None:
        status = run.status(item.address)
        if status.num_finished:
            return f"resumes: {status.num_finished:,} finished in the journal of an attempt ({status.state})"
        return "not run yet" if status.state == "absent" else f"not completed: its last attempt {status.state}"
    if changed := differing_keys(record.settings, semantic_dump(item.settings)):
        keys = [line.split(": ", 1)[0] for line in changed]
        more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
        return f"changed: {', '.join(keys[:_SHOWN_KEYS])}{more}"
    for ref in (ref for refs in record.inputs.values() for ref in refs):
        producer = next((made for made in run.records() if made.address == ref.address), None)
        if producer is not None and producer.outputs.get(ref.artifact.kind) != ref.artifact:
            return f"{ref.address} was rerun"
    if record.version != item.stage.version:
        return f"stage version {record.version} -> {item.stage.version}"
    if not item.stage.is_complete(record.metrics):
        return "units accepted as missing are requested again"
    return "an artifact is missing or damaged"


def _without_record(addresses: Sequence[str], run: Run) -> Collection[str]:
    made = {record.address for record in run.records()}
    return [address for address in addresses if address not in made]


def keys_set(config: TreadleConfig) -> list[str]:
    """Return every key that differs from its default as a line of TOML."""
    given = config.model_dump(mode="json", exclude_defaults=True)
    return list(toml_lines(_with_types(given, config.model_dump(mode="json"))))


def _with_types(given: Any, whole: Any) -> Any:
    """Return the given keys, with the `type` of each table that has one: without it, its other keys cannot be read."""
    if isinstance(given, Mapping) and isinstance(whole, Mapping):
        types = {"type": whole["type"]} if isinstance(whole.get("type"), str) else {}
        return types | {key: _with_types(value, whole.get(key)) for key, value in given.items()}
    if isinstance(given, list) and isinstance(whole, list):
        return [_with_types(*both) for both in zip(given, whole, strict=True)]
    return given


def changed_keys(
    config: TreadleConfig, semantic: Mapping[str, Any], root: str | Path, run_id: str
) -> tuple[list[str] | None, bool]:
    """Return the keys that differ from an existing run's configuration, and whether the run refuses them.

    The keys are None if there is no such run.
    """
    if not run_exists(root, run_id):
        return None, False
    run = Run.open(root, run_id)
    before, now = run.config(), config.model_dump(mode="json")
    if not before.get("flow", {}).get("models"):
        now["flow"]["models"] = []  # Derived in the run too, to the same models: see `with_run_defaults`.
    changed = differing_keys(before, now)
    locked = differing_keys(run.info.semantic, orjson.loads(orjson.dumps(semantic, default=str)), TreadleConfig)
    return changed, bool(locked) and not is_untouched(run)
