"""Select a part of a flow: from a given instance on, or without some instances."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.run import Run, run_exists
from treadle.core.runs.stage import Instance
from treadle.tasks.planning.plan import why_not_reused

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class FlowPart:
    """Which instances of a flow run, and which do not."""

    instances: list[Instance]
    """Instances that are run, or checked for changes, in flow order."""
    kept: dict[str, str] = field(default_factory=dict)
    """Address -> why its result, which is reused, is outdated; empty if it is up to date."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Address -> reason, for instances that are skipped and have no result."""

    @property
    def is_part(self) -> bool:
        """True if any instance of the flow is left out."""
        return bool(self.kept or self.left_out)

    def lines(self) -> list[str]:
        """Return warnings for the user: outdated results that are used, and instances that are left out."""
        stale = [f"warning: {address} is used as it is, although: {why}" for address, why in self.kept.items() if why]
        return stale + [f"{address} is left out: {why}" for address, why in self.left_out.items()]


def flow_part(
    instances: Sequence[Instance],
    root: str | Path,
    run_id: str,
    start_from: str | None = None,
    without: Collection[str] = (),
) -> FlowPart:
    """Return the part of a flow that starts from an instance and leaves some out.

    Results before `start_from`, and of instances in `without`, are reused, even if outdated. If an instance in
    `without` has no result, everything that reads it is left out too. Raises ConfigError for an address that is not in
    the flow, for an instance that reads what neither the flow nor the run has, and if nothing is left to run; RunError
    if an instance before `start_from` is needed and has no result.
    """
    known = [str(item.address) for item in instances]
    for text in (*([start_from] if start_from else []), *without):
        if text not in known:
            raise ConfigError(f"{text!r} is not in this flow, which has {', '.join(known)}")
    before = set(known[: known.index(start_from)] if start_from else ())
    run = Run.open(root, run_id) if run_exists(root, run_id) else None
    part = FlowPart([])
    missing: dict[str, str] = {}
    for item in instances:
        address = str(item.address)
        is_wanted = address not in before and address not in without
        missing_inputs = [str(one) for bound in item.inputs.values() for one in bound if str(one) in part.left_out]
        if is_wanted and not missing_inputs:
            _require_producers(item, known, run)
            part.instances.append(item)
            continue
        if is_wanted:
            missing |= {one: address for one in missing_inputs if one in before}
        if run is not None and run.record(item.address) is not None:
            part.kept[address] = why_not_reused(item, run)
        elif address in before:
            part.left_out[address] = f"it comes before {start_from}"
        else:
            part.left_out[address] = (
                f"its input {missing_inputs[0]} is missing" if is_wanted else "requested by --without"
            )
    if missing:
        named = ", ".join(f"{one} (read by {reader})" for one, reader in missing.items())
        raise RunError(f"cannot start from {start_from}: run {run_id} has no result of {named}; start earlier")
    if not part.instances:
        left_out = [f"{address}: {why}" for address, why in part.left_out.items()]
        said = left_out[:_SHOWN] + [f"and {len(left_out) - _SHOWN} more"] * (len(left_out) > _SHOWN)
        raise ConfigError(
            f"nothing is left to run in {run_id} ({'; '.join(said) or 'all results are reused'}); skip less"
        )
    return part


def _require_producers(item: Instance, known: Collection[str], run: Run | None) -> None:
    """Raise ConfigError if an instance without a result reads what neither the flow nor the run has."""
    if run is not None and run.record(item.address) is not None:
        return
    for producer in (one for bound in item.inputs.values() for one in bound):
        if str(producer) not in known and (run is None or run.record(producer) is None):
            of_phase = (item.address.qualifier or "").startswith("phase-")
            where = "the recipe" if producer.stage == "questions" else "flow.stages"
            model = ", or name another model in rl.start" if of_phase and producer.stage == "sft" else ""
            raise ConfigError(
                f"{item.address} reads {producer}, which this flow does not run and the run does not have: add "
                f"{producer.stage!r} to {where}{model}"
            )
