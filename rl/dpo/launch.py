"""Run a training on preferences in child processes (check, train, finish), each in the environment `trl`.

All files of a training are in one folder. If called again with the folder of an interrupted training, it resumes from
the newest complete state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from pydantic import TypeAdapter

from treadle.core.engines.event_log import EventLog
from treadle.core.engines.process import Child
from treadle.core.engines.training import Advice, EngineFolder, EngineOptions, Greedy, PathIn, error_text
from treadle.core.engines.training_engine import TrainingEngine
from treadle.core.engines.training_run import TrainingListener, TrainingResult, TrainingRun
from treadle.core.errors import EngineError

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
    """Number of pairs in these means."""
    learning_rate: float
    grad_norm: float | None
    """Norm of the gradient before clipping."""
    epoch: float
    seconds: float
    """Seconds in training so far, over all attempts, without work that was lost with them."""


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
        validations: Figures of the held-out pairs by step, without those of steps that were lost.
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
class DpoFolder(EngineFolder):
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
    """Greedy completion by the model in training, at its end."""
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

    `prompt` is continued greedily by the model, before and after it
    is written. Raises the errors of `TrainingRun.run`.
    """
    run = _PairRun(
        engine=engine,
        folder=folder,
        options=options,
        events=PairEvents(folder),
        listener=listener or TrainingListener[PairStep](),
        plan=plan,
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
class _PairRun(TrainingRun[PairStep]):
    """One call of `train_on_pairs`."""

    name = "training on preferences"
    job_file = "{}.json"

    folder: DpoFolder
    events: PairEvents
    plan: Mapping[str, Any]
    prompt: list[int] = field(default_factory=list)

    def _store_config(self) -> bool:
        """Write the plan; return whether it was the last that the engine accepted."""
        content = orjson.dumps(self.plan, option=orjson.OPT_INDENT_2)
        self.folder.config.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        return bool(self.events.last.get("prepared", {}).get("config_digest") == digest)

    def _is_finished(self) -> bool:
        return super()._is_finished() and (not self.prompt or "greedy" in self.events.last)

    def _announcement(self, command: str) -> str:
        return {"check": "checking TRL's configuration", "finish": "writing the model"}.get(command, "")

    def _advice(self, command: str) -> Advice:
        return _FINISH_ADVICE if command == "finish" else _ADVICE

    def _job(self, command: str) -> dict[str, Any]:
        return {
            "config": str(self.folder.config),
            "parquet": str(self.folder.parquet),
            "model": str(self.folder.model),
            "revision": self.events.last.get("prepared", {}).get("revision", ""),
            "prompt": self.prompt,
            "num_greedy_tokens": self.options.num_greedy_tokens,
        }

    def _explain(self, command: str, child: Child, code: int, error: Mapping[str, Any] | None) -> Exception:
        if error and error["kind"] == "no_model":
            reason = error_text(error).partition(": ")[2]
            return EngineError(
                f"dpo.model cannot be fetched from the model hub ({reason}); check its name and the network, or set a "
                f"local folder; log: {child.log_path}"
            )
        return super()._explain(command, child, code, error)

    def _check_training(self) -> None:
        """Raise EngineError also if no loss was logged, or always the same."""
        super()._check_training()
        steps, num_steps = self.events.steps, self.events.last["end"]["step"]
        if not steps:
            raise self._failure(f"no loss was logged in {num_steps} steps")
        if len(steps) > 1 and len({step.loss for step in steps}) == 1:
            raise self._failure(
                f"the loss was {steps[0].loss:g} in all {num_steps} steps: nothing was learned; check learning_rate "
                "and the masks of the pairs"
            )
