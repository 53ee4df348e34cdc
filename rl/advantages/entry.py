"""Declare the stage `advantages` to flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from treadle.core.engines.config import TutorServer
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext, WorkResult
from treadle.rl.advantages.figures import advantages_report
from treadle.rl.advantages.settings import AdvantagesOptions, AdvantagesSettings
from treadle.rl.dpo.instances import CRITIC, aggregate_of
from treadle.rl.preferences.entry import policy_checkpoint, policy_rollouts
from treadle.rl.preferences.settings import PreferencesOptions
from treadle.rl.preferences.tables import ADVANTAGES as ADVANTAGES_TABLE
from treadle.stages.entry import Inputs, NamedModel, StageEntry
from treadle.stages.models import checked_model, with_weights
from treadle.stages.plan import Plan


def critic_checkpoint(address: Address) -> Address:
    """Return the instance that trains the critic of an iteration."""
    return Address(address.iteration, "dpo", CRITIC)


def critic_fields(plan: Plan, address: Address) -> dict[str, Any]:
    """Return the settings of the critic that scores an instance's candidates; the same iteration trains this critic.

    They are `critic_name`, `critic`, `hidden`, `hidden_chars` and `is_mean`. Raises ConfigError if the configured
    model is not under `models` or cannot serve the critic.
    """
    options = plan.options(Address(address.iteration, "advantages"), AdvantagesOptions)
    name = options.critic or plan.sampled(policy_rollouts(plan, address.iteration)).name
    critic = critic_checkpoint(address)
    if name not in plan.models:
        raise ConfigError(f"{address}: advantages.critic names {name!r}, which is not under [models]")
    model, _ = checked_model(name, with_weights(plan.models[name], str(critic)))
    if isinstance(model.server, TutorServer):
        raise ConfigError(
            f"{address}: models.{name} is served by the rule-based tutor, which cannot serve the critic {critic}; set "
            "advantages.critic to a model with a vLLM server"
        )
    pairs = plan.options(Address(address.iteration, "preferences", "trajectory"), PreferencesOptions)
    return {
        "critic_name": name,
        "critic": model,
        "hidden": pairs.hidden_information,
        "hidden_chars": pairs.hidden_chars,
        "is_mean": aggregate_of(plan, critic) != "sum",
    }


def _settings(plan: Plan, address: Address) -> AdvantagesSettings:
    sampled = plan.sampled(policy_rollouts(plan, address.iteration))
    reference, tokenizer_digest = checked_model(sampled.name, sampled.model)
    return AdvantagesSettings(
        **critic_fields(plan, address),
        reference_name=sampled.name,
        reference=reference,
        tokenizer_digest=tokenizer_digest,
        **plan.mixture(),
        options=plan.options(address, AdvantagesOptions),
    )


def _inputs(plan: Plan, address: Address) -> Inputs:
    options, rollouts = plan.options(address, AdvantagesOptions), policy_rollouts(plan, address.iteration)
    return {
        "candidates": (Address(address.iteration, "candidates"),),
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": (critic_checkpoint(address), *policy_checkpoint(plan, address.iteration)),
        **({"rollouts": (rollouts,), "scores": (replace(rollouts, stage="scores"),)} if options.best_of else {}),
    }


def _models(options: AdvantagesOptions) -> Iterator[NamedModel]:
    yield NamedModel("critic", options.critic)


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.rl.advantages.run import AdvantagesRun

    return AdvantagesRun(context).write()


def _work(context: StageContext) -> WorkResult:
    from treadle.core import steady_loop
    from treadle.rl.advantages.run import AdvantagesRun

    return steady_loop.run(AdvantagesRun(context).work())


ADVANTAGES_STAGE = Stage(
    name="advantages",
    version=1,
    settings=AdvantagesSettings,
    consumes={name: name for name in ("candidates", "questions", "checkpoint", "rollouts", "scores")},
    optional=frozenset({"rollouts", "scores"}),
    produces=(ADVANTAGES_TABLE,),
    run=_run,
    work=_work,
)
ADVANTAGES = StageEntry(
    stage=ADVANTAGES_STAGE,
    table=AdvantagesOptions,
    settings=_settings,
    inputs=_inputs,
    models=_models,
    report=advantages_report,
    description="Score candidates for turns by the critic; needs servers that return log-probabilities of prompts.",
    on_gpu=True,
)
