"""Resolve the inputs of a stage instance to artifacts of the current results of its producers."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.records import InputRef
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Rows

_log = logging.getLogger(__name__)


def bind_inputs(instance: Instance, run: Run) -> dict[str, tuple[InputRef, ...]]:
    """Return the artifacts of each input; raise RunError naming the producer to run first."""
    stage, given = instance.stage, instance.inputs
    if not stage.consumes.keys() - stage.optional <= given.keys() <= stage.consumes.keys():
        raise ConfigError(
            f"{instance.address}: stage {stage.name} reads {sorted(stage.consumes)}, "
            f"but the bound inputs are {sorted(given)}"
        )
    bound = {}
    for name, kind in stage.consumes.items():
        refs = []
        for producer in given.get(name, ()):
            record = run.record(producer)
            if record is None:
                raise RunError(
                    f"{instance.address} reads {kind} of {producer}, which has not been run; run {producer} first"
                )
            if kind not in record.outputs:
                raise RunError(
                    f"{instance.address} reads {kind} of {producer}, which produced only {', '.join(record.outputs)}; "
                    f"run {producer} again with --force"
                )
            refs.append(InputRef(address=str(producer), artifact=record.outputs[kind]))
        bound[name] = tuple(refs)
    return bound


def open_inputs(run: Run, bound: Mapping[str, tuple[InputRef, ...]]) -> dict[str, tuple[Rows, ...]]:
    """Open the artifacts that an instance reads, for its context."""
    return {name: tuple(run.rows(ref.artifact) for ref in refs) for name, refs in bound.items()}


def warn_of_stale(bound: Mapping[str, tuple[InputRef, ...]], run: Run) -> None:
    """Log a warning if an input of a producer was rerun after the producer; the producer's result is still used."""
    for producer in dict.fromkeys(ref.address for refs in bound.values() for ref in refs):
        record = run.record(Address.parse(producer))
        for ref in (ref for refs in record.inputs.values() for ref in refs) if record is not None else ():
            upstream = run.record(Address.parse(ref.address))
            if upstream is not None and upstream.outputs.get(ref.artifact.kind) != ref.artifact:
                _log.warning("%s was made from an older %s; run %s again to update it", producer, ref.address, producer)
