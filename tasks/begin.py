"""Beginning a run: its configuration, from files or as it was begun with, and the run itself, made or opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.core.config import load_config, read_text
from treadle.core.errors import ConfigError
from treadle.core.locked_config import create_or_open_run
from treadle.core.runs import Run, run_exists
from treadle.core.stage import Address
from treadle.tasks.begin_checks import check_models, check_roles, check_secrets, check_web, has_keys
from treadle.tasks.catalog import flow_addresses, semantic_of
from treadle.tasks.config import TreadleConfig
from treadle.tasks.models import flow_models
from treadle.tasks.services import with_index_of_services


def configuration_of(root: str | Path, run_id: str, configs: Sequence[Path], overrides: Sequence[str]) -> TreadleConfig:
    """The configuration named on the command line, or, without files, that of the existing run."""
    if configs:
        return load_config(TreadleConfig, configs, overrides)
    if not run_exists(root, run_id):
        raise ConfigError(f"there is no run {run_id!r} in {root}; name a configuration file to start it")
    return load_config(TreadleConfig, (), overrides, base=Run.open(root, run_id).config())


def resolve_config(
    root: str | Path, run_id: str, config_file: Path | None, config: TreadleConfig | None
) -> TreadleConfig:
    """The configuration given to a flow: the file, with the keys that were set in `config` on top."""
    if config_file is not None:
        given = config.model_dump(mode="json", exclude_unset=True) if config is not None else {}
        return load_config(TreadleConfig, (config_file,), data=given)
    if config is not None:
        return config
    return configuration_of(root, run_id, (), ())


def as_begun(config: TreadleConfig, root: str | Path, run_id: str, *, ask: bool = True) -> TreadleConfig:
    """The configuration with what it leaves open and an existing run was begun with: models of the flow, and the index
    of search services (see `with_index_of_services`, also for errors)."""
    config = with_index_of_services(config, root, run_id, ask=ask)
    if config.flow.models or not run_exists(root, run_id):
        return config
    names = _models_of(Run.open(root, run_id))
    if not names or not config.models.keys() >= set(names):
        return config
    return config.model_copy(update={"flow": config.flow.model_copy(update={"models": names})})


def open_run(
    root: str | Path, run_id: str, config: TreadleConfig, configs: Sequence[Path] = (), *, needs_keys: bool = True
) -> Run:
    """Make the run, or open it if its configuration would give the same results; raises RunError otherwise.

    Raises ConfigError for a configuration that holds a secret of the environment. Before a model becomes part of a run,
    its servers are asked for it: a wrong name would be locked in. What a search of the web needs is looked for, too.
    Without `needs_keys` what wants a key that is not there is not asked.
    """
    resolved, given = config.model_dump(mode="json"), "\n".join(map(read_text, configs))
    check_secrets(config, given, resolved)
    made = Run.open(root, run_id) if run_exists(root, run_id) else None
    if made is None:
        check_roles(config)
        if needs_keys:
            check_web(config)
    known = set(made.info.semantic.get("models", {})) if made is not None else set[str]()
    if not needs_keys:
        known |= {name for name, settings in config.models.items() if not has_keys(settings)}
    check_models(config, known)
    semantic = semantic_of(config) if made is None else semantic_for(made, config)
    return create_or_open_run(root, run_id, resolved, semantic, given, seed=config.seed, schema=TreadleConfig)


def semantic_for(run: Run, config: TreadleConfig) -> dict[str, Any]:
    """`semantic_of`, with the models of the flow unnamed where an older version made the run without their names."""
    semantic = semantic_of(config)
    unnamed = not run.info.semantic.get("flow", {}).get("models")
    if unnamed and tuple(semantic["flow"]["models"]) == _models_of(run):
        semantic["flow"]["models"] = []
    return semantic


def known_addresses(run: Run) -> list[Address]:
    """Addresses of a run's flow, producers first; none where its configuration is of another version."""
    try:
        return flow_addresses(load_config(TreadleConfig, base=run.config()))
    except ConfigError:
        return []


def _models_of(run: Run) -> tuple[str, ...]:
    """Models of a run's flow, by its own configuration; none where that is of another version."""
    if named := run.info.semantic.get("flow", {}).get("models"):
        return tuple(named)
    try:
        return flow_models(load_config(TreadleConfig, base=run.config()))
    except ConfigError:
        return ()
