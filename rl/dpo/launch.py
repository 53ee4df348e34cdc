"""Run a training on preferences in child processes (check, train, finish), each in the environment `trl`.

All files of a training are in one folder. If called again with the folder of an interrupted training, it resumes from
the newest complete state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from pydantic import TypeAdapter

from treadle.core.engines.event_log import EventLog
from treadle.core.engines.training import Advice, ConfiguredFolder, EngineOptions, Greedy, PathIn
from treadle.core.engines.training_engine import TrainingEngine
from treadle.core.engines.training_run import LossTrainingRun, TrainingListener, TrainingResult

_ADVICE = Advice(
    refused="TRL refuses the configuration of dpo",
    memory="lower per_device_batch_size or max_tokens, set gradient_checkpointing, or use LoRA: policy and reference "
    "are both held on each device",
    killed="lower per_device_batch_size or max_tokens, use LoRA, or use a machine with more memory",
)
_FINISH_ADVICE = replace(
    _ADVICE,
    memory="the training is saved, only its model must still be written; free memory: all weights are held at once",
    killed="the training is saved, only its model must still be written; free memory or use a machine with more",
)


@dataclass(frozen=True, slots=True)
class PairStep:
    """A logged step."""

    step: int
    """Number of updates so far, earlier attempts included."""
    num_steps: int
    """Number of updates of the whole training."""
    loss: float
    """Mean loss since the previous logged step."""
    accuracy: float | None
    """Share of pairs whose chosen side has the higher score."""
    margin: float | None
    """Mean difference of scores, chosen minus rejected."""
    num_pairs: int | None
    """Number of pairs over which accuracy and margin are averaged: those since the previous logged step."""
    learning_rate: float
    grad_norm: float | None
    """Norm of the gradient before clipping."""
    epoch: float
    seconds: float
    """Seconds in training so far, over all attempts, without steps that were lost when an attempt ended."""


@dataclass(frozen=True, slots=True)
class PairValidation:
    """Figures of the held-out pairs after a step."""

    step: int
    epoch: float
    loss: float
    accuracy: float
    margin: float
    num_pairs: int
    num_right: int
    """Number of pairs whose chosen side has the higher score."""


class PairEvents(EventLog[PairStep]):
    """Reader of the events of a training on preferences.

    Attributes:
        validations: Step -> figures of the held-out pairs, without steps that were lost when an attempt ended.
    """

    _validation: TypeAdapter[PairValidation] = TypeAdapter(PairValidation)

    def __init__(self, folder: DpoFolder) -> None:
        super().__init__(folder.events, PairStep)
        self.validations: dict[int, PairValidation] = {}

    def take(self, event: dict[str, Any]) -> None:
        """See `EventLog.take`."""
        super().take(event)
        if event["event"] == "begin":
            known = self.validations.items()
            self.validations = {step: one for step, one in known if step <= event["resumed_step"]}
        elif event["event"] == "validation":
            made = self._validation.validate_python({key: event[key] for key in PairValidation.__slots__})
            self.validations[made.step] = made


@dataclass(frozen=True, slots=True)
class DpoFolder(ConfiguredFolder):
    """Paths of the files of one training on preferences."""

    config = PathIn("plan.json")
    """Arguments for the engine."""
    refused = PathIn("refused")
    """Exported model that failed its checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTraining(TrainingResult[PairStep]):
    """The result of a completed training on preferences; its steps are updates."""

    validations: tuple[PairValidation, ...]
    """Figures of the held-out pairs, in the order of their steps."""
    live_greedy: Greedy | None
    """Greedy completion by the model at the end of training."""
    revision: str
    """Commit of the base model on the model hub; empty for a folder."""


def train_on_pairs(
    folder: DpoFolder,
    plan: Mapping[str, Any],
    options: EngineOptions,
    engine: TrainingEngine,
    listener: TrainingListener[PairStep] | None = None,
    *,
    prompt: Sequence[int] = (),
) -> PairTraining:
    """Train on the stored pairs according to the plan, or resume an interrupted training.

    `prompt` is continued greedily twice, to be compared: by the model at the end of training, and by the written model.
    Raises the errors of `TrainingRun.run`.
    """
    run = _PairRun(
        engine=engine,
        folder=folder,
        options=options,
        events=PairEvents(folder),
        listener=listener or TrainingListener[PairStep](),
        config_text=orjson.dumps(plan, option=orjson.OPT_INDENT_2).decode(),
        prompt=list(prompt),
    )
    run.run()
    last = run.events.last
    return PairTraining(
        **run.facts(),
        validations=tuple(sorted(run.events.validations.values(), key=lambda one: one.step)),
        live_greedy=Greedy.of_event(last.get("live_greedy")),
        revision=last["prepared"]["revision"],
    )


@dataclass(kw_only=True)
class _PairRun(LossTrainingRun[PairStep]):
    """One call of `train_on_pairs`."""

    name = "training on preferences"
    model_key = "dpo.model"
    learned_from = "the masks of the pairs"

    events: PairEvents

    def _announcement(self, command: str) -> str:
        return {"check": "checking TRL's configuration", "finish": "writing the model"}.get(command, "")

    def _advice(self, command: str) -> Advice:
        return _FINISH_ADVICE if command == "finish" else _ADVICE
