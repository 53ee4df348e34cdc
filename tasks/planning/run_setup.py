"""Resolve the configuration of a run and create or open the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treadle.core.config import load_config, read_text
from treadle.core.errors import ConfigError, closest
from treadle.core.runs.address import Address
from treadle.core.runs.launches import read_launch, record_launch
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.runs.run import Run, list_runs, run_exists
from treadle.tasks.catalog import semantic_of
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.model_checks import check_models, check_roles, check_tokenizers, has_keys
from treadle.tasks.planning.order import flow_addresses
from treadle.tasks.planning.secret_checks import check_secrets, key_variables
from treadle.tasks.planning.service_fingerprints import with_service_fingerprint
from treadle.tasks.planning.web_checks import check_provider, check_web


def configuration_of(root: str | Path, run_id: str, configs: Sequence[Path], overrides: Sequence[str]) -> TreadleConfig:
    """Return the configuration from the files and overrides, or, without files, that of the existing run.

    Raises ConfigError if there are neither files nor such a run, and as `load_config` and `stored_config` do.
    """
    if configs:
        return load_config(TreadleConfig, configs, overrides)
    if not run_exists(root, run_id):
        hint = closest(run_id, list_runs(root))
        raise ConfigError(f"there is no run {run_id!r} in {root}; name a configuration file to start it{hint}")
    return stored_config(Run.open(root, run_id), overrides)


def recorded_config(path: Path, overrides: Sequence[str]) -> TreadleConfig:
    """Return the configuration in the record of a launch, with `--set` overrides.

    Raises ConfigError if the file cannot be read or this version does not accept it, RunError if it was changed.
    """
    record = read_launch(path)
    try:
        return load_config(TreadleConfig, (), overrides, base=record.config)
    except ConfigError as error:
        raise ConfigError(f"{error} (in {path}, or in --set)") from None


def stored_config(run: Run, overrides: Sequence[str] = ()) -> TreadleConfig:
    """Return a run's own configuration with `--set` overrides.

    Raises RunError if the stored configuration is damaged, and ConfigError, naming its file, if this version does not
    accept it.
    """
    base = run.config()
    try:
        return load_config(TreadleConfig, (), overrides, base=base)
    except ConfigError as error:
        place = run.storage.location(run.key("config.json"))
        raise ConfigError(
            f"{error} (in {place}, the stored configuration of the run, or in --set); give the configuration "
            f"file of the run again, or correct it with --set"
        ) from None


def resolve_config(
    root: str | Path, run_id: str, config_file: Path | None, config: TreadleConfig | None
) -> TreadleConfig:
    """Return the configuration passed to a flow: the file, overridden by the keys that are set in `config`.

    With neither, return the configuration of the existing run; raises ConfigError if there is none.
    """
    if config_file is not None:
        given = config.model_dump(mode="json", exclude_unset=True) if config is not None else {}
        return load_config(TreadleConfig, (config_file,), data=given)
    if config is not None:
        return config
    return configuration_of(root, run_id, (), ())


def with_run_defaults(config: TreadleConfig, root: str | Path, run_id: str, *, ask: bool = True) -> TreadleConfig:
    """Fill in keys that the configuration leaves open, with the values that an existing run was created with.

    These are the models of the flow and the index of search services. Errors: see `with_service_fingerprint`.
    """
    config = with_service_fingerprint(config, root, run_id, ask=ask)
    if config.flow.models or not run_exists(root, run_id):
        return config
    names = tuple(Run.open(root, run_id).info.semantic.get("flow", {}).get("models", ()))
    if not names or not config.models.keys() >= set(names):
        return config
    return config.model_copy(update={"flow": config.flow.model_copy(update={"models": names})})


def open_run(
    root: str | Path,
    run_id: str,
    config: TreadleConfig,
    configs: Sequence[Path] = (),
    *,
    needs_keys: bool = True,
    allow_changes: bool = False,
) -> Run:
    """Create the run, or open it if its configuration would give the same results, and record the launch.

    Raises RunError if the configuration would give other results, unless `allow_changes`: see `create_or_open_run`.

    Raises ConfigError if the configuration contains a secret from the environment. Models that are new to the run are
    checked against their servers first, because a wrong name would be locked in. A new run also needs what its web
    search requires (see `check_web` and `check_provider`). Without `needs_keys`, web search and models whose API keys
    are missing are not checked.
    """
    resolved, given = config.model_dump(mode="json"), "\n".join(map(read_text, configs))
    check_secrets(config, given, resolved)
    made = Run.open(root, run_id) if run_exists(root, run_id) else None
    if made is None:
        check_roles(config)
        if needs_keys:
            check_web(config)
            check_provider(config)
    # With `allow_changes`, a model of the same name may be a different one, so it is checked again.
    known = set(made.info.semantic.get("models", {})) if made is not None and not allow_changes else set[str]()
    check_tokenizers(config, known)
    if not needs_keys:
        known |= {name for name, settings in config.models.items() if not has_keys(settings)}
    check_models(config, known)
    semantic = semantic_of(config)
    run = create_or_open_run(
        root, run_id, resolved, semantic, given, seed=config.seed, schema=TreadleConfig, allow_changes=allow_changes
    )
    record_launch(run, resolved, given, key_variables(config))
    return run


def known_addresses(run: Run) -> list[Address]:
    """Return the addresses of a run's flow, producers first; empty if another version wrote its configuration."""
    try:
        return flow_addresses(load_config(TreadleConfig, base=run.config()))
    except ConfigError:
        return []
