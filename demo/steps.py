"""Describe the steps of the demo and estimate how long each one and the rest will take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treadle.core.figures import duration
from treadle.core.runs.address import Address
from treadle.core.runs.execute import planned_action
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.demo.demos import FRONTEND


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A stage of the demo.

    Attributes:
        words: Description for the user; empty if it takes only a moment.
        usual_s: Seconds on two cores with the sizes of `demo.toml`, including the start of its model server.
    """

    words: str
    usual_s: float


STEPS: Mapping[str, DemoStep] = {
    "pools": DemoStep("the tutor answers training questions and repairs wrong answers, with search and Python", 21),
    "sft_rows": DemoStep("right, well-formed trajectories become fine-tuning rows, tool results masked", 1),
    "sft": DemoStep("LLaMA-Factory fine-tunes SmolLM2-135M on these rows", 179),
    "rollouts@phase-1": DemoStep("the trained model answers training questions, four times each, on vLLM", 254),
    "selection@phase-1": DemoStep("group-wise Pareto selection keeps the questions whose rollouts differ most", 1),
    "rl@phase-1": DemoStep("TRL trains the model further by reinforcement learning, with real tools", 430),
    "rollouts@tutor": DemoStep("the tutor answers held-out questions about entities that no row names", 9),
    "rollouts@base": DemoStep("the original SmolLM2-135M answers them, on vLLM", 96),
    "rollouts@tuned": DemoStep("the fine-tuned SmolLM2-135M answers them", 119),
    "rollouts@reinforced": DemoStep("the model after reinforcement learning answers them", 111),
    "report": DemoStep("tables and charts", 1),
}
"""Steps by stage and model. The durations are from one run of 21 minutes on two idle cores without AVX-512."""
GAP_STEPS: Mapping[str, DemoStep] = {
    "rollouts@tutor": DemoStep("the tutor answers comparisons, fact after fact and all facts at once", 10),
    "sft_rows": DemoStep("right, well-formed trajectories become fine-tuning rows, observations masked", 1),
    "sft": DemoStep("LLaMA-Factory fine-tunes SmolLM2-135M on the rows of both instructions", 780),
    "rollouts@tuned": DemoStep("it answers held-out comparisons, fact after fact and all facts at once, on vLLM", 210),
    "report": DemoStep("tables and charts", 1),
}
"""Steps of `treadle demo gap`; the durations are estimated from those above, by numbers of tokens."""
COLBENCH_STEPS: Mapping[str, DemoStep] = {
    "rollouts@tutor": DemoStep(
        "the tutor asks a human, played by rule too, which program is wanted, and writes it", 10
    ),
    "scores@tutor": DemoStep("hidden tests run in sandboxes, each program apart from the reference", 30),
    "sft_rows@start": DemoStep("right dialogues become fine-tuning rows, the human's messages masked", 1),
    "sft@start": DemoStep("LLaMA-Factory fine-tunes SmolLM2-135M on these rows", 150),
    "rollouts@start": DemoStep("the fine-tuned model talks with the human, three times about each task, on vLLM", 190),
    "scores@start": DemoStep("hidden tests run on its programs", 25),
    "preferences@trajectory": DemoStep("better and worse dialogues about the same task become pairs", 1),
    "dpo@critic": DemoStep("TRL trains a critic, which sees the hidden program, to tell them apart", 200),
    "candidates": DemoStep("the model writes four alternatives for each message of some dialogues", 75),
    "advantages": DemoStep("the critic scores them", 90),
    "preferences@turn": DemoStep("better and worse alternatives become pairs", 1),
    "dpo@policy": DemoStep("TRL trains the model on these pairs, without what is hidden", 145),
    "rollouts@policy": DemoStep("the trained model talks with the human about the same held-out tasks", 100),
    "scores@policy": DemoStep("hidden tests run on its programs", 20),
    "report": DemoStep("tables and charts", 1),
}
"""Steps of `treadle demo colbench`; the durations are estimated from those above, by numbers of tokens."""
EVOLVE_STEPS: Mapping[str, DemoStep] = {
    "exploration": DemoStep("an agent explores the ledger, tasks are written about what it found, and tried out", 15),
    "rollouts@tutor": DemoStep("the tutor works on tasks of the ledger, some of them at the service", 10),
    "sft_rows": DemoStep("right rollouts become fine-tuning rows, replies of the ledger masked", 1),
    "sft": DemoStep("LLaMA-Factory fine-tunes SmolLM2-135M on these rows", 200),
    "rollouts@start": DemoStep("the fine-tuned model works on tasks to train on and on held-out ones, on vLLM", 130),
    "experience": DemoStep("strategies and lessons are written about its rollouts, and checked", 5),
    "rollouts@phase-1": DemoStep("it works on original and new tasks, four times each", 90),
    "selection@phase-1": DemoStep("group-wise Pareto selection keeps the tasks whose rollouts differ most", 1),
    "rl@phase-1": DemoStep("TRL trains it by GRPO; half of each group sees experience, each step has its credit", 260),
    "rollouts@policy": DemoStep("the trained model works on the same held-out tasks", 90),
    "report": DemoStep("tables and charts", 1),
}
"""Steps of `treadle demo evolve`; the durations are estimated from those above, by numbers of tokens."""
FRONTEND_STEPS: Mapping[str, DemoStep] = {
    "rollouts@hasty": DemoStep("an agent, the tutor, writes a page by chance, which Chromium draws", 20),
    "scores@hasty": DemoStep("a network for images compares each page with the wanted one", 40),
    "rollouts@tutor": DemoStep("it changes its pages as a human says, played by rule, who sees pictures of them", 30),
    "scores@tutor": DemoStep("the network compares these pages", 60),
    "report": DemoStep("tables and charts", 1),
}
"""Steps of `treadle demo colbench --frontend`; the durations are estimates."""
DEMO_STEPS = {
    "flywheel": STEPS,
    "gap": GAP_STEPS,
    "colbench": COLBENCH_STEPS,
    FRONTEND: FRONTEND_STEPS,
    "evolve": EVOLVE_STEPS,
}
_OTHER = DemoStep("", 1)
_PRIOR_S = 60.0
"""Weight of the usual times: the machine's speed is estimated as if it had also worked this long at usual speed."""


class DemoSteps:
    """Progress of a demo, with the time left of its steps.

    The time left is the usual time of the open steps, scaled by how the finished steps compare with their usual times.
    """

    def __init__(
        self, instances: Sequence[Instance], run: Run, *, timed: bool, steps: Mapping[str, DemoStep] = STEPS
    ) -> None:
        """Prepare the progress of these instances; `timed`: whether the usual times hold for the configured sizes."""
        self._instances, self._run, self._timed, self._steps = instances, run, timed, steps
        self._explained = [item.address for item in instances if step_of(item.address, steps).words]
        self._began = 0.0
        self._usual_s = 0.0
        """Usual seconds of the current instance; 0 if it does not run."""
        self._actual_s = self._expected_s = _PRIOR_S

    def begin(self, instance: Instance, run: Run) -> tuple[str, float | None, float | None]:
        """Note that an instance begins; return its description, its expected seconds, and those of all later instances.

        The description is empty if there is nothing to show, and the seconds are None if unknown.
        """
        step = step_of(instance.address, self._steps)
        works = planned_action(instance, run) == "run"
        self._began, self._usual_s = time.monotonic(), step.usual_s if works else 0.0
        line = ""
        if works and step.words:
            line = f"step {self._explained.index(instance.address) + 1} of {len(self._explained)}: {step.words}"
        if not self._timed or not works:
            return line, None, None
        factor = self._actual_s / self._expected_s
        usual_s, later_stages_s = step.usual_s * factor, self._later_stages_s(instance) * factor
        if line:
            line += f" (about {duration(usual_s)}; about {duration(usual_s + later_stages_s)} left for all steps)"
        return line, usual_s, later_stages_s

    def end(self) -> None:
        """Count the time of the instance begun last, so that estimates of the time left follow this machine's speed."""
        if self._usual_s:
            self._actual_s += time.monotonic() - self._began
            self._expected_s += self._usual_s

    def _later_stages_s(self, instance: Instance) -> float:
        """Return the usual seconds of all later instances that will run."""
        places = [item.address for item in self._instances]
        upcoming = self._instances[places.index(instance.address) + 1 :]
        to_run = [item for item in upcoming if planned_action(item, self._run) in ("run", "missing input")]
        return sum(step_of(item.address, self._steps).usual_s for item in to_run)


def step_of(address: Address, steps: Mapping[str, DemoStep] = STEPS) -> DemoStep:
    """Return the demo step at this address."""
    stage = f"{address.stage}@{address.qualifier}" if address.qualifier else address.stage
    return steps.get(stage, _OTHER)
