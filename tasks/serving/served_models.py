"""Find the models in an instance's settings that the run serves itself, and identify their servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from treadle.core.config import Section
from treadle.core.engines.config import TutorServer, VllmServer
from treadle.core.errors import RunError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.core.store.artifacts import ArtifactRef
from treadle.core.tables import CHECKPOINTS, MODEL_FOLDER
from treadle.stages.models import checkpoint_of


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Identity of a server: equal specs can share one."""

    server: VllmServer | TutorServer
    """Server settings; `model` is empty if it is a checkpoint of this run."""
    checkpoint: ArtifactRef | None
    model: str
    """Model name in requests."""
    revision: str

    def settings(self, run: Run) -> VllmServer | TutorServer:
        """Return the settings to start the server with."""
        if self.checkpoint is None:
            return self.server
        return self.server.model_copy(update={"model": str(run.rows(self.checkpoint).folder(MODEL_FOLDER))})


def served_models(settings: Any) -> list[ModelSettings]:
    """Return the models in an instance's settings that the run serves itself, without duplicates."""
    found: list[ModelSettings] = []
    for model in models_in(settings):
        if model.server is not None and model not in found:
            found.append(model)
    return found


def server_spec(model: ModelSettings, run: Run) -> ServerSpec:
    """Return the spec of a model's server; raise RunError if its checkpoint does not exist yet."""
    server, checkpoint, address = model.server, None, checkpoint_of(model)
    assert server is not None
    if address is not None:
        checkpoint = _checkpoint(run, address)
        server = server.model_copy(update={"model": ""})
    return ServerSpec(server, checkpoint, model.model, model.revision)


def known_specs(instance: Instance, run: Run) -> Iterator[ServerSpec]:
    """Yield the specs of the servers that an instance needs, skipping those whose checkpoint does not exist yet."""
    for model in served_models(instance.settings):
        with suppress(RunError):
            yield server_spec(model, run)


def _checkpoint(run: Run, address: Address) -> ArtifactRef:
    record = run.record(address)
    if record is None or CHECKPOINTS.kind not in record.outputs:
        raise RunError(f"there is no checkpoint of {address} yet; run {address} first")
    return record.outputs[CHECKPOINTS.kind]


def models_in(settings: Any) -> Iterator[ModelSettings]:
    """Yield all models in an instance's settings."""
    if isinstance(settings, ModelSettings):
        yield settings
    elif isinstance(settings, Section):
        for name in type(settings).model_fields:
            yield from models_in(getattr(settings, name))
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from models_in(value)


def with_models(settings: Any, served: Sequence[tuple[ModelSettings, ModelSettings]]) -> Any:
    """Return the settings with each model replaced by its served version, given as pairs (model, served model)."""
    if isinstance(settings, ModelSettings):
        return next((reachable for model, reachable in served if model == settings), settings)
    if isinstance(settings, Section):
        fields = {name: getattr(settings, name) for name in type(settings).model_fields}
        changed = {name: with_models(value, served) for name, value in fields.items()}
        return settings.model_copy(update={name: new for name, new in changed.items() if new is not fields[name]})
    if isinstance(settings, Mapping):
        changed = {name: with_models(value, served) for name, value in settings.items()}
        return settings if all(changed[name] is value for name, value in settings.items()) else changed
    return settings
