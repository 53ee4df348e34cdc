"""Lock the configuration of a run once it has results, except for keys that may change or grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from treadle.core.config import differing_keys
from treadle.core.errors import LockedConfig, RunError
from treadle.core.runs.records import RunInfo, as_json, json_round_trip, parse_record
from treadle.core.runs.run import Run, checked_id
from treadle.core.store.roots import open_storage

_SHOWN_DIFFERENCES = 20
_CODE = ".code_sha256:"
ALLOW_CHANGES = "treadle run --allow-changes"
"""Command that accepts a changed configuration, for error messages; notebooks and deployments show them, too."""


def create_or_open_run(
    root: str | Path,
    run_id: str,
    config_json: Mapping[str, Any],
    semantic_json: Mapping[str, Any],
    config_input: str = "",
    *,
    seed: int | None = None,
    schema: type[BaseModel] | None = None,
    allow_changes: bool = False,
) -> Run:
    """Create a run, or resume one made with the same semantic configuration; `schema` describes both.

    Raises RunError listing the keys that differ, unless the run has no results yet or `allow_changes`: then the run
    takes the new configuration, and results that were made with other settings are not current any more. Differences in
    operational keys and revisable sections, and items added to growing lists and tables, are accepted in any case.
    No change is accepted while an instance is running with other semantic settings. If the resolved configuration has
    changed, it is stored, and the user's file with it unless that is empty.
    """
    storage, key = open_storage(root), f"runs/{checked_id(run_id)}/run.json"
    before = storage.get(key)
    if before is None:
        try:
            return Run.create(root, run_id, config_json, semantic_json, config_input, seed=seed)
        except RunError:
            # Another process may have created the run meanwhile.
            if (before := storage.get(key)) is None:
                raise
    run = Run(storage, parse_record(before, key, RunInfo))
    semantic = json_round_trip(semantic_json)
    differences = differing_keys(run.info.semantic, semantic, schema)
    if differences and not allow_changes and not is_untouched(run):
        raise _refusal(run, differences)
    if run.info.semantic != semantic:
        _refuse_while_running(run, semantic)
        run.info = run.info.model_copy(update={"semantic": semantic, "seed": seed})
        # If two processes with different configurations do this at once, one wins and the other gets the differences.
        if not storage.put_if(key, as_json(run.info), before):
            return create_or_open_run(
                root,
                run_id,
                config_json,
                semantic_json,
                config_input,
                seed=seed,
                schema=schema,
                allow_changes=allow_changes,
            )
    if run.readable_config() != json_round_trip(config_json):
        run.write_config(config_json, config_input)
    return run


def check_config(run: Run, semantic_json: Mapping[str, Any], schema: type[BaseModel] | None = None) -> None:
    """Raise RunError, listing the keys, if a configuration would give other results than this run's."""
    if differences := differing_keys(run.info.semantic, json_round_trip(semantic_json), schema):
        raise _refusal(run, differences)


def is_untouched(run: Run) -> bool:
    """Return whether the run has no results and no recorded work yet, and no running instance."""
    # On an object root, a journal has lists of its segments as well.
    recorded = (key for key in run.storage.keys(run.key("journal")) if key.endswith(".journal"))
    made = any(run.storage.keys(run.key("records"))) or any(recorded) or any(run.storage.keys(run.key("store")))
    return not made and not any(status.state == "running" for status in run.statuses())


def _refuse_while_running(run: Run, semantic: Mapping[str, Any]) -> None:
    """Raise RunError if an instance is running with the settings that are to change."""
    busy = [status.address for status in run.statuses() if status.state == "running"]
    if busy:
        changed = "; ".join(differing_keys(run.info.semantic, semantic)[:_SHOWN_DIFFERENCES])
        raise RunError(
            f"run {run.run_id} is in progress with other settings ({changed}); wait until {busy[0]} has "
            "ended, then run this again"
        )


def _refusal(run: Run, differences: Sequence[str]) -> LockedConfig:
    more = len(differences) - _SHOWN_DIFFERENCES
    edited = [place for place, key, _ in (one.partition(_CODE) for one in differences) if key]
    if len(edited) == len(differences):
        places = " and ".join(edited)
        return LockedConfig(
            f"the code of {places} was edited since run {run.run_id} began; choose a new run id, undo it, or make "
            f"again what it affects: {ALLOW_CHANGES}"
        )
    shown = "; ".join(differences[:_SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
    return LockedConfig(
        f"run {run.run_id} was made with another configuration ({shown}); "
        f"choose a new run id, resume with the configuration in {run.key('config.json')}, or make again what "
        f"the changes affect: {ALLOW_CHANGES}"
    )
