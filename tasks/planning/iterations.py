"""Resolve the configuration for one iteration, and the checkpoint that it starts from.

Settings and inputs of an instance are derived from the configuration as its iteration sees it, so that other modules
need no special case for iterations. Documented in docs/behaviour/iterations.md.
"""

from __future__ import annotations

from dataclasses import replace

from treadle.core.engines.config import VllmServer
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address, phase_name, phase_of
from treadle.tasks.config import TreadleConfig, overridden
from treadle.tasks.planning.models import checkpoints_of, named_checkpoint, pool_models, with_weights


def starting_policy(config: TreadleConfig, iteration: int) -> Address | None:
    """Return the last checkpoint of the previous iteration; None for the first iteration and if no stage trains."""
    stage = config.flow.last_training
    if iteration == 1 or stage is None:
        return None
    return Address(iteration - 1, stage, phase_name(config.curriculum.phases) if stage == "rl" else None)


def at_iteration(config: TreadleConfig, iteration: int) -> TreadleConfig:
    """Return the configuration as an iteration sees it.

    - Checkpoints of the first iteration that tables name become those of this iteration.
    - Training starts from this iteration's starting policy, unless its start is made within the iteration.
    - `flow.iterations` ends at this iteration.
    - Overrides are taken literally.
    """
    policy = starting_policy(config, iteration)
    models = {name: _own_model(config, model, iteration) for name, model in config.models.items()}
    sft, rl = config.sft, config.rl
    if (own := _own_start(config, sft.model, iteration, policy)) != sft.model:
        sft = sft.model_copy(update={"model": own, "revision": ""})
    if (own := _own_start(config, rl.start, iteration, policy)) != rl.start:
        rl = rl.model_copy(update={"start": own, "revision": ""})
    flow = config.flow.model_copy(update={"iterations": iteration})
    return config.model_copy(update={"flow": flow, "models": models, "sft": sft, "rl": rl})


def pool_roles(config: TreadleConfig, iteration: int) -> dict[str, tuple[str, ModelSettings]]:
    """Return role -> name and settings of its model in `pools` of an iteration.

    The policy, and each role that defaults to it, uses the weights that the iteration starts from, unless an override
    names its model.
    """
    address = Address(iteration, "pools")
    policy = starting_policy(config, iteration)
    along = _roles_with_starting_policy(config, address) if policy is not None else ()
    return {
        role: (name, with_weights(config.models[name], str(policy)) if role in along else config.models[name])
        for role, name in pool_models(config, address).items()
    }


def pool_checkpoints(config: TreadleConfig, iteration: int) -> tuple[Address, ...]:
    """Return the instances whose checkpoints play roles in `pools` of an iteration, without duplicates."""
    address = Address(iteration, "pools")
    policy = starting_policy(config, iteration)
    names = pool_models(config, address)
    along = _roles_with_starting_policy(config, address) if policy is not None else set()
    others = checkpoints_of(config, (name for role, name in names.items() if role not in along))
    return tuple(dict.fromkeys((policy, *others) if policy is not None and along else others))


def _roles_with_starting_policy(config: TreadleConfig, address: Address) -> set[str]:
    """Return the `pools` roles that use the iteration's starting policy: the policy and roles that default to it.

    Empty if an override names the policy.
    """
    if "model" in config.overrides.get(str(address), {}).get("roles", {}).get("policy", {}):
        return set()
    roles = overridden(config, address, config.pools).roles
    along = {"policy", *(role for role in ("critic", "refiner") if getattr(roles, role).model is None)}
    return along | {"judge"} if roles.judge.model is None and "critic" in along else along


def _own_start(config: TreadleConfig, start: str, iteration: int, policy: Address | None) -> str:
    """Return the model that training starts from: this iteration's own checkpoint if it makes one, else `policy`."""
    own = _own(config, start, iteration)
    return own if policy is None or own != start else str(policy)


def _own_model(config: TreadleConfig, model: ModelSettings, iteration: int) -> ModelSettings:
    """Return a model with the weights of an iteration; user-run servers serve them under the checkpoint's address."""
    if isinstance(model.server, VllmServer):
        own = _own(config, model.server.model, iteration)
        return model.model_copy(update={"server": model.server.model_copy(update={"model": own})})
    return model if model.server else model.model_copy(update={"model": _own(config, model.model, iteration)})


def _own(config: TreadleConfig, name: str, iteration: int) -> str:
    """Return the iteration's own checkpoint for a name such as `1/sft`; any other name is returned unchanged."""
    for made in named_checkpoint(name):
        if made.iteration == 1 and _is_made_every_iteration(config, made):
            return str(replace(made, iteration=iteration))
    return name


def _is_made_every_iteration(config: TreadleConfig, made: Address) -> bool:
    """Return whether the flow makes this checkpoint in every iteration."""
    if made.stage not in config.flow.stages:
        return False
    phase = phase_of(made.qualifier)
    return made.qualifier is None if made.stage == "sft" else phase is not None and phase <= config.curriculum.phases
