"""Running instances of a configured run: what the command line and the Prefect flows have in common.

Prefect-free. A model server that the configuration asks for is started only when a stage really has work to do, and
stops with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from treadle.core.config import Section, load_config, read_text
from treadle.core.engines.cache import Notify, quiet
from treadle.core.engines.config import VllmServer
from treadle.core.engines.serving import serve
from treadle.core.errors import ConfigError, EndpointUnavailable, RunError
from treadle.core.execute import execute, state_of
from treadle.core.llm.config import EndpointSettings, ModelSettings
from treadle.core.records import StageRecord
from treadle.core.runs import Run, run_exists
from treadle.core.schemas import CHECKPOINTS, MODEL_FOLDER
from treadle.core.secrets import refuse_secrets
from treadle.core.stage import Address, Instance, Progress
from treadle.core.storage import open_storage
from treadle.tasks.catalog import flow_addresses, semantic_of
from treadle.tasks.config import TreadleConfig, overridden
from treadle.tasks.models import checkpoint_of, flow_models, pool_models, score_models
from treadle.tasks.phases import flow_phases, sampling_model
from treadle.tasks.services import with_index_of_services

_CHECK_S = 30.0
"""How long a server may take to answer before a run is made; a slow one is met again in the stage."""


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


def open_run(root: str | Path, run_id: str, config: TreadleConfig, configs: Sequence[Path] = ()) -> Run:
    """Make the run, or open it if its configuration would give the same results; raises RunError otherwise.

    Raises ConfigError for a configuration that holds a secret of the environment. Before a model becomes part of a run,
    its servers are asked for it: a wrong name would be locked in. What a search of the web needs is looked for, too.
    """
    resolved, given = config.model_dump(mode="json"), "\n".join(map(read_text, configs))
    endpoints = [endpoint for model in config.models.values() for endpoint in model.endpoints]
    search = config.environment.search
    endpoints += [*search.encoder.endpoints, *(search.service.endpoints if search.service else ())]
    named = {endpoint.api_key_env for endpoint in endpoints if endpoint.api_key_env}
    if search.web is not None and search.web.provider is not None:
        named.update(search.web.provider.api_key_envs)
    refuse_secrets((given, *_texts(resolved)), named=named)
    made = Run.open(root, run_id) if run_exists(root, run_id) else None
    if made is None:
        _check_roles(config)
        check_web(config)
    _check_models(config, known=made.info.semantic.get("models", {}) if made is not None else ())
    semantic = semantic_of(config) if made is None else semantic_for(made, config)
    return Run.create_or_open(root, run_id, resolved, semantic, given, seed=config.seed, schema=TreadleConfig)


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


def semantic_for(run: Run, config: TreadleConfig) -> dict[str, Any]:
    """`semantic_of`, with the models of the flow unnamed where an older version made the run without their names."""
    semantic = semantic_of(config)
    unnamed = not run.info.semantic.get("flow", {}).get("models")
    if unnamed and tuple(semantic["flow"]["models"]) == _models_of(run):
        semantic["flow"]["models"] = []
    return semantic


def _models_of(run: Run) -> tuple[str, ...]:
    """Models of a run's flow, by its own configuration; none where that is of another version."""
    if named := run.info.semantic.get("flow", {}).get("models"):
        return tuple(named)
    try:
        return flow_models(load_config(TreadleConfig, base=run.config()))
    except ConfigError:
        return ()


def _texts(tree: Any) -> Iterator[str]:
    """All texts in JSON-able data, keys included."""
    if isinstance(tree, Mapping):
        tree = [*tree.keys(), *tree.values()]
    if isinstance(tree, list):
        for item in tree:
            yield from _texts(item)
    elif isinstance(tree, str):
        yield tree


def check_web(config: TreadleConfig) -> None:
    """Look for what is needed where the web is searched.

    Raises ConfigError naming a variable that should hold a key of the search provider, ArtifactError where there is no
    record to take searches from.
    """
    from treadle.agent.web.key_ring import KeyRing
    from treadle.agent.web.record_folder import record_manifest

    web = config.environment.search.web
    if web is None or not config.environment.searches_web:
        return
    if web.provider is not None and web.mode != "replay":
        KeyRing(web.provider.api_key_envs, os.environ, clock=time.monotonic)
    if web.record_used is not None:
        record_manifest(open_storage(web.record_used))


def _check_roles(config: TreadleConfig) -> None:
    """Raise ConfigError for a model that cannot play a role it has, whatever its server says."""
    from treadle.agent.opening import check_api

    roles = pool_models(config) if "pools" in config.flow.stages else {}
    sampled = {"policy": sampling_model(config)} if flow_phases(config, 1) else {}
    for role, name in (*sampled.items(), *roles.items()):
        check_api(role, name, config.models[name])


def _check_models(config: TreadleConfig, known: Collection[str]) -> None:
    """Raise ConfigError where a server that answers does not serve its model as configured; others may come up.

    Servers of models that the run knows are not asked again.
    """
    import asyncio

    from treadle.agent.opening import AGENT, check_sampling
    from treadle.core.llm.pool import ModelPool

    async def check(name: str, settings: ModelSettings) -> None:
        limits = {"retry_limit": 0, "request_timeout_s": min(settings.request_timeout_s, _CHECK_S)}
        async with ModelPool(name, settings.model_copy(update=limits)) as pool:
            with suppress(EndpointUnavailable):
                facts = await pool.check()
                if name in agents:
                    options = overridden(config, Address(1, "rollouts", name), config.rollouts)
                    check_sampling(AGENT, name, options.sampling, facts)

    roles = pool_models(config) if "pools" in config.flow.stages else {}
    policies = flow_models(config)
    agents = policies if "rollouts" in config.flow.stages else ()
    measured = [Address(1, "scores", name) for name in policies] if "scores" in config.flow.stages else []
    used = [*policies, *roles.values(), *(judge for address in measured for judge in score_models(config, address))]
    helper = config.environment.summarizer
    for name in dict.fromkeys((*used, *((helper,) if helper else ()))):
        if name not in known and (settings := config.models[name]).endpoints:
            asyncio.run(check(name, settings))


def known_addresses(run: Run) -> list[Address]:
    """Addresses of a run's flow, producers first; none where its configuration is of another version."""
    try:
        return flow_addresses(load_config(TreadleConfig, base=run.config()))
    except ConfigError:
        return []


def run_instance(
    instance: Instance,
    run: Run,
    *,
    force: bool = False,
    accept_failures: bool = False,
    progress: Progress | None = None,
    notify: Notify = quiet,
) -> StageRecord:
    """`execute`, with servers of models around it where the configuration asks for some and there is work to do."""
    with ExitStack() as stack:
        wants_servers = any(model.server is not None for model in _models_in(instance.settings))
        if wants_servers and (force or state_of(instance, run) == "run"):
            instance = stack.enter_context(with_servers(instance, run, notify))
        return execute(instance, run, force=force, accept_failures=accept_failures, progress=progress)


@contextmanager
def with_servers(instance: Instance, run: Run, notify: Notify) -> Iterator[Instance]:
    """The instance with the models that the configuration wants served reachable, for the length of a block."""
    served: list[tuple[ModelSettings, ModelSettings]] = []
    with ExitStack() as stack:
        for model in _models_in(instance.settings):
            # A model in several roles has one server.
            if model.server is not None and all(model != known for known, _ in served):
                served.append((model, stack.enter_context(_served(model, run, notify))))
        yield replace(instance, settings=_with_models(instance.settings, served)) if served else instance


def _models_in(settings: Any) -> Iterator[ModelSettings]:
    """All models that an instance's settings hold."""
    if isinstance(settings, ModelSettings):
        yield settings
    elif isinstance(settings, Section):
        for name in type(settings).model_fields:
            yield from _models_in(getattr(settings, name))
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from _models_in(value)


def _with_models(settings: Any, served: Sequence[tuple[ModelSettings, ModelSettings]]) -> Any:
    """The settings with each model that is served in place of the one that asked for it."""
    if isinstance(settings, ModelSettings):
        return next((reachable for model, reachable in served if model == settings), settings)
    if isinstance(settings, Section):
        fields = {name: getattr(settings, name) for name in type(settings).model_fields}
        changed = {name: _with_models(value, served) for name, value in fields.items()}
        return settings.model_copy(update={name: new for name, new in changed.items() if new is not fields[name]})
    if isinstance(settings, Mapping):
        changed = {name: _with_models(value, served) for name, value in settings.items()}
        return settings if all(changed[name] is value for name, value in settings.items()) else changed
    return settings


def checkpoint_folder(run: Run, address: Address) -> Path:
    """The model that an instance made, on this machine; raises RunError where there is none."""
    record = run.record(address)
    if record is None or CHECKPOINTS.kind not in record.outputs:
        raise RunError(f"there is no checkpoint of {address} yet; run {address} first")
    return run.rows(record.outputs[CHECKPOINTS.kind]).folder(MODEL_FOLDER)


@contextmanager
def _served(model: ModelSettings, run: Run, notify: Notify) -> Iterator[ModelSettings]:
    """The model as it can be reached while its server runs; raises RunError where its checkpoint is not there yet."""
    assert model.server is not None
    server = model.server
    if (address := checkpoint_of(model)) is not None:
        server = server.model_copy(update={"model": str(checkpoint_folder(run, address))})
    with serve(server, model_name=model.model, notify=notify) as served:
        reachable = {
            "endpoints": (EndpointSettings(url=served.url),),
            "tokenizer": model.tokenizer or served.tokenizer_folder,
        }
        yield model.model_copy(update=reachable)


def serve_until_interrupted(server: VllmServer, *, notify: Notify) -> NoReturn:
    """Serve a model until Ctrl-C or SIGTERM; raises EngineError when the server ends by itself."""
    with serve(server, notify=notify) as served:
        notify(f"serving {served.model} at {served.url}; stop with Ctrl-C")
        if served.tokenizer_folder is not None:
            notify(f"tokenizer: {served.tokenizer_folder}")
        served.child.wait()
        raise served.child.failure("ended")
