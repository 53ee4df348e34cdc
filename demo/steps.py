"""The steps of the demo: what each does in words, how long it usually takes, how much is left of all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.execute import state_of
from treadle.core.runs import Run
from treadle.core.stage import Address, Instance
from treadle.tasks.pace import duration


@dataclass(frozen=True, slots=True)
class Step:
    """What a stage of the demo does.

    Attributes:
        words: For people; empty where it is over in a moment.
        usual_s: How long it took on two cores with the sizes of `demo.toml`, the start of its model server included.
    """

    words: str
    usual_s: float


STEPS = {
    "pools": Step("the tutor answers questions to train on and mends what went wrong, with real search and Python", 21),
    "sft_rows": Step("what is right and well formed becomes rows to train on, results of tools masked", 1),
    "sft": Step("LLaMA-Factory trains SmolLM2-135M on them", 179),
    "rollouts@phase-1": Step("the trained model answers training questions, four times each, on vLLM", 254),
    "selection@phase-1": Step("group-wise Pareto: the questions whose answers differ most are worth reinforcement", 1),
    "rl@phase-1": Step("TRL reinforces the trained model on them, with real tools", 430),
    "rollouts@tutor": Step("the tutor answers held-out questions about things that no row names", 9),
    "rollouts@base": Step("SmolLM2-135M as it came answers them, on vLLM", 96),
    "rollouts@tuned": Step("SmolLM2-135M as it was fine-tuned answers them", 119),
    "rollouts@reinforced": Step("SmolLM2-135M as it was reinforced answers them", 111),
    "report": Step("tables and pictures", 1),
}
"""By stage and model. The seconds are those of one whole run of 21 minutes on two cores without AVX-512 and nothing
beside it."""
_OTHER = Step("", 1)
_TRUSTED_S = 60.0
"""Weight of the usual times against those of this machine: so much of them counts as if it had gone as usual."""


class DemoSteps:
    """Counts the steps of a demo, and says what is left of them.

    What is left is the usual time of the steps that are not done, as much longer or shorter as those before them were.
    """

    def __init__(self, instances: Sequence[Instance], run: Run, *, timed: bool) -> None:
        """`timed`: whether the sizes are those for which the usual times hold."""
        self._instances, self._run, self._timed = instances, run, timed
        self._explained = [item.address for item in instances if step_of(item.address).words]
        self._began = 0.0
        self._usual_s = 0.0
        """Of the instance at hand."""
        self._took_s = self._should_s = _TRUSTED_S

    def begin(self, instance: Instance, run: Run) -> tuple[str, float | None, float | None]:
        """What is about to be done, in one line, empty where there is nothing to say; how many seconds it usually
        takes, and all after it, where that is known."""
        step = step_of(instance.address)
        works = state_of(instance, run) == "run"
        self._began, self._usual_s = time.monotonic(), step.usual_s if works else 0.0
        line = ""
        if works and step.words:
            line = f"step {self._explained.index(instance.address) + 1} of {len(self._explained)}: {step.words}"
        if not self._timed or not works:
            return line, None, None
        factor = self._took_s / self._should_s
        usual_s, after_s = step.usual_s * factor, self._after_s(instance) * factor
        if line:
            line += f" (about {duration(usual_s)}; of all steps about {duration(usual_s + after_s)} left)"
        return line, usual_s, after_s

    def end(self) -> None:
        """The instance that was begun last is made."""
        if self._usual_s:
            self._took_s += time.monotonic() - self._began
            self._should_s += self._usual_s

    def _after_s(self, instance: Instance) -> float:
        """Usual seconds of what is still to be made behind an instance."""
        places = [item.address for item in self._instances]
        coming = self._instances[places.index(instance.address) + 1 :]
        to_make = [item for item in coming if state_of(item, self._run) in ("run", "missing input")]
        return sum(step_of(item.address).usual_s for item in to_make)


def step_of(address: Address) -> Step:
    """The step of the demo at this address."""
    stage = f"{address.stage}@{address.qualifier}" if address.qualifier else address.stage
    return STEPS.get(stage, _OTHER)
