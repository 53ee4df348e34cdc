"""The stages `candidates` and `advantages` over scripted servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.preferences.desk import Desk
from support.rollouts.model_pool import FAST
from support.servers.scripted_server import ScriptedServer

from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.stage import Instance
from treadle.rl.advantages.entry import ADVANTAGES_STAGE
from treadle.rl.advantages.settings import AdvantagesOptions, AdvantagesSettings
from treadle.rl.candidates.entry import CANDIDATES_STAGE
from treadle.rl.candidates.settings import CandidatesOptions, CandidatesSettings
from treadle.rl.guided.entry import GUIDED_ROLLOUTS_STAGE
from treadle.rl.guided.settings import GuidedOptions, GuidedSettings


class Bench:
    """A desk with servers for policy and critic."""

    def __init__(self, desk: Desk, policy: ScriptedServer, critic: ScriptedServer, **execution: bool) -> None:
        self.desk = desk
        self._execution = {"force": True, **execution}
        self._servers = {"policy": policy, "critic": critic}

    def _model(self, role: str) -> ModelSettings:
        return ModelSettings.model_validate(
            {
                "model": "scripted",
                "tokenizer": self.desk.tokenizer.folder,
                "endpoints": [{"url": self._servers[role].url}],
                "revision": role,
                **FAST,
            }
        )

    def _run(self, name: str, stage: Any, settings: Any, **inputs: str) -> StageRecord:
        bound = {key: (Address.parse(text),) for key, text in inputs.items()}
        instance = Instance(address=Address.parse(f"1/{name}"), stage=stage, settings=settings, inputs=bound)
        return execute(instance, self.desk.run, **self._execution)

    def candidates(self, **options: Any) -> StageRecord:
        given = {"num_candidates": 4, "sampling": Sampling(max_tokens=64), **options}
        settings = CandidatesSettings(
            model_name="base",
            model=self._model("policy"),
            environment=self.desk.environment,
            options=CandidatesOptions(**given),
            seed=1,
        )
        inputs = {"rollouts": "1/rollouts@base", "questions": "1/questions"}
        return self._run("candidates", CANDIDATES_STAGE, settings, **inputs)

    def advantages(
        self, *, hidden: bool = True, hidden_chars: int = 16_000, is_mean: bool = True, **options: Any
    ) -> StageRecord:
        settings = AdvantagesSettings(
            critic_name="critic",
            critic=self._model("critic"),
            reference_name="base",
            reference=self._model("policy"),
            environment=self.desk.environment,
            hidden=hidden,
            hidden_chars=hidden_chars,
            is_mean=is_mean,
            options=AdvantagesOptions(**options),
        )
        inputs = {"candidates": "1/candidates", "questions": "1/questions", "checkpoint": "1/dpo@critic"}
        if options.get("best_of"):
            inputs |= {"rollouts": "1/rollouts@base", "scores": "1/scores@base"}
        return self._run("advantages", ADVANTAGES_STAGE, settings, **inputs)

    def guided(self, *, changed: Mapping[str, Any] | None = None, **options: Any) -> StageRecord:
        settings = GuidedSettings(
            model_name="base",
            model=self._model("policy"),
            environment=self.desk.environment,
            critic_name="critic",
            critic=self._model("critic"),
            options=GuidedOptions(**{"sampling": Sampling(max_tokens=64), **options}),
            seed=1,
            **(changed or {}),
        )
        inputs = {"questions": "1/questions", "checkpoint": "1/dpo@critic", "scores": "1/scores@base"}
        return self._run("guided_rollouts", GUIDED_ROLLOUTS_STAGE, settings, **inputs)


def likes_ones(prompt: list[int]) -> tuple[float, ...]:
    """Give the digit 1 a higher log-probability than all other ids."""
    return tuple(-0.5 if token == ord("1") else -1.0 for token in prompt[1:])
