"""Run by the Python of the engine environment `verl`: what verl itself makes of our files and classes, as JSON.

`ANSWER.json FOLDER`: `FOLDER` holds `job.json`, `overrides.json` (argument lines by name), a model's folder `start`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.credit.numbered_turns import NumberedTurns
from support.credit.verl_check import credited_facts
from support.training.rewards import group_rewards
from support.training.scripted_groups import (
    ANSWER,
    CONTRACT_BRANCHING,
    CONTRACT_ENVIRONMENT,
    CONTRACT_VOCABULARY,
    SEARCH,
    contract_facts,
    contract_generator,
    contract_rollouts,
    contract_tools,
)
from support.training.stub_verl import StubClient, caller
from support.training.verl_plans import loop_fields, verl_files

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError
from treadle.core.seeds import derive_seed
from treadle.environments.question.runtime import QuestionRuntime
from treadle.rl.engine.rows import Payloads
from treadle.rl.engine.scorer import GroupScorer, open_scorer
from treadle.rl.engine.verl import loop as verl_loop
from treadle.rl.engine.verl.compose import compose_config
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.engine.verl.host import LoopHost
from treadle.rl.environment import OpenEnvironment
from treadle.rl.groups.attempts import require_groups
from treadle.rl.groups.group import GroupJob
from treadle.rl.rewards.base import GroupItem
from treadle.rl.training.plan import RlPlan
from treadle.rl.verl.config import override_lines, verl_overrides
from treadle.rl.verl.data import write_verl_steps

FORK_ONLY = (
    "actor_rollout_ref.rollout.initial_rollouts=8",
    "actor_rollout_ref.rollout.beam_size=2",
    "actor_rollout_ref.rollout.branch_probability=0.5",
    "actor_rollout_ref.rollout.entropy_weight=0.2",
    "actor_rollout_ref.rollout.tools.call_limit=6",
)
EXAMPLE_A = ((12, 1, 200, True), (12, 3, 420, True), (0, 0, 100, True), (12, 2, 300, True), (12, 2, 300, False),
             (0, 4, 480, False))  # fmt: skip
"""Answer (12 is right), calls, length, format of a group's trajectories: Example A."""


class Probe:
    """All checks; they share the composed configuration of the job."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.folder = folder
        self.job = json.loads((folder / "job.json").read_text())
        self.plan = RlPlan.from_json(json.dumps(self.job["plan"]))
        self.lines = json.loads((folder / "overrides.json").read_text())
        self.codec = ChatTokenizer.load(folder / "start")
        self.scorer = opened.enter_context(open_scorer(self.plan, {"default": CONTRACT_ENVIRONMENT}))

    def composed(self) -> dict[str, Any]:
        """Return how verl's schema answers each list of overrides, unknown keys, and some resulting values."""
        said = {name: _refusal(lines) for name, lines in self.lines.items()}
        config = compose_config(self.lines["job"])
        policy = config.actor_rollout_ref
        return {
            "said": said,
            "fork": {key: _refusal([*self.lines["job"], key]) for key in FORK_ONLY},
            "unknown": _refusal([*self.lines["job"], "trainer.save_every=3"]),
            "values": {
                "n": policy.rollout.n,
                "loop": policy.rollout.agent.default_agent_loop,
                "dual_clip": policy.actor.clip_ratio_c,
                "strategy": policy.actor.strategy,
                "address": config.trainer.experiment_name,
                "note": config.trainer.note,
            },
        }

    async def worked_example(self) -> dict[str, Any]:
        """Four sessions of one group under verl's own worker, rewarded by mean minus own calls; then a crash."""
        fields, size = loop_fields(), 4
        numbers = self._seeds("train", 1, 0, size)
        scripted = caller(self.codec, dict(zip(numbers, (1, 2, 3, 6), strict=True)), SEARCH, ANSWER)
        batch = await self._worker(scripted, CallsHost, size).generate_sequences(_batch([fields] * size))
        positions = batch.batch["response_mask"]
        broken = caller(self.codec, dict(zip(numbers[:3], (1, 2, 3), strict=True)), SEARCH, ANSWER)
        try:
            await self._worker(broken, CallsHost, size).generate_sequences(_batch([fields] * size))
            crash = ""
        except Exception as error:  # noqa: BLE001
            crash = f"{type(error).__name__}: {error}"
        return {
            "rewards": batch.batch["rm_scores"].sum(dim=-1).tolist(),
            "calls": batch.non_tensor_batch["tool_calls"].tolist(),
            "reward_at_last_token": bool((batch.batch["rm_scores"] != 0).sum(dim=-1).le(1).all()),
            "num_trained": positions.sum(dim=-1).tolist(),
            "crash": crash,
        }

    async def contract(self) -> dict[str, Any]:
        """Run the scenario of tests/support/training/scripted_groups.py through the loop, and without any engine.

        verl's servers tell no entropies, so that branching looks at the surprisal of what was sampled, here and there.
        """
        size = 8
        fields = [loop_fields(f"key-{at}", uid=f"group-{at}", index=at, text=f"Question {at}?") for at in range(3)]
        generator = contract_generator(self.codec)
        generator._entropy = None
        jobs = [
            GroupJob(f"group-{at}", Task(f"key-{at}", f"Question {at}?", domain="math"), size,
                     derive_seed(self.plan.seed, "train", 1, at))
            for at in range(3)
        ]  # fmt: skip
        plain = contract_facts(await require_groups(contract_rollouts(generator, self.codec), jobs), self.codec)
        worker = self._worker(lambda request: generator([request])[0], ContractHost, size)
        batch = await worker.generate_sequences(_batch([row for row in fields for _ in range(size)]))
        return {"plain": plain, "verl": self._facts(batch, size), "advantages": _advantages(batch)}

    async def credited(self) -> dict[str, Any]:
        """One group with credit of turns; see `support.credit.verl_check`."""
        options = self.plan.options.model_copy(update={"credit": NumberedTurns()})
        plan = self.plan.model_copy(update={"options": options})
        generator = contract_generator(self.codec)
        generator._entropy = None
        size = 8
        rows = _batch([loop_fields("key-0", uid="group-0", text="Question 0?")] * size)
        with open_scorer(plan, {"default": CONTRACT_ENVIRONMENT}) as scorer:
            worker = self._worker(lambda one: generator([one])[0], ContractHost, size, plan, scorer)
            worker.outputs = []
            await worker.generate_sequences(rows)
        return credited_facts(override_lines(verl_overrides(plan, verl_files())), worker.outputs)

    def _facts(self, batch: Any, size: int) -> list[list[dict[str, Any]]]:
        groups = []
        for start in range(0, len(batch), size):
            items = []
            for row in range(start, start + size):
                prompt_length = batch.batch["prompts"].shape[1]
                length = int(batch.batch["attention_mask"][row, prompt_length:].sum())
                ids = batch.batch["responses"][row, :length].tolist()
                items.append(
                    {
                        "completion": self.codec.decode(ids),
                        "mask": batch.batch["response_mask"][row, :length].tolist(),
                        "logprobs": round(float(batch.batch["rollout_log_probs"][row].sum()), 6),
                        "reward": float(batch.batch["rm_scores"][row].sum()),
                        "reward_at": int(batch.batch["rm_scores"][row].abs().argmax()) if length else -1,
                        "length": length,
                    }
                )
            groups.append(items)
        return groups

    def _seeds(self, split: str, step: int, index: int, size: int) -> list[int]:
        group = derive_seed(self.plan.seed, split, step, index)
        return [derive_seed(group, session) for session in range(size)]

    def _worker(
        self,
        script: Any,
        host: type[LoopHost],
        size: int,
        plan: RlPlan | None = None,
        scorer: GroupScorer | None = None,
    ) -> Any:
        """verl's own worker with our loop, a stub of its client and a host whose tools are stubs."""
        from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
        from verl.workers.rollout.replica import TokenOutput

        class Worker(AgentLoopWorker):  # type: ignore[misc]
            """Keeps the outputs of the loop."""

            outputs: list[Any] = []

            async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> Any:
                self.outputs.append(output)
                return await super()._agent_loop_postprocess(output, validate, **kwargs)

        settings = CONTRACT_ENVIRONMENT if host is ContractHost else WIDE
        made = host(
            plan or self.plan,
            {"default": OpenEnvironment(settings, QuestionRuntime(settings, contract_tools()))},
            self.codec,
            CONTRACT_VOCABULARY,
            VerlFolder(self.folder / "verl"),
            scorer or self.scorer,
            Payloads(None),
        )

        async def host_of(job: Path) -> LoopHost:
            assert job == self.folder / "verl" / "job.json"
            return made

        verl_loop.host_of = host_of
        lines = [*self.lines["job"], f"actor_rollout_ref.rollout.n={size}"]
        return Worker(compose_config(lines), StubClient(script, TokenOutput), None, None)

    def example_a(self) -> list[float]:
        """verl's advantages of Example A."""
        from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

        items = [
            GroupItem.from_text(
                f"{'<think>t</think>' if formed else ''}<answer>\\boxed{{{answer}}}</answer>",
                tool_calls=calls,
                model_tokens=length,
                dialect=TOOL_DIALECT,
            )
            for answer, calls, length, formed in EXAMPLE_A
        ]
        rewards = torch.tensor(
            [[reward.reward] for reward in group_rewards(items, ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)]
        )
        advantages, _ = compute_grpo_outcome_advantage(rewards, torch.ones(6, 1), np.array(["u"] * 6))
        return [float(value) for value in advantages[:, 0]]

    def packed(self) -> float:
        """Return the largest difference between sequences that are packed as verl packs them (no mask, positions that
        restart) and the same sequences alone, with the attention that the overrides choose.
        """
        from transformers import AutoConfig, AutoModelForCausalLM

        attention = compose_config(self.lines["job"]).actor_rollout_ref.model.override_config.attn_implementation
        config = AutoConfig.from_pretrained(self.folder / "start")
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()
        parts = [torch.arange(1, 8).unsqueeze(0), torch.arange(20, 29).unsqueeze(0)]
        positions = torch.cat([torch.arange(part.shape[1]) for part in parts]).unsqueeze(0)
        with torch.no_grad():
            alone = torch.cat([model(part).logits for part in parts], dim=1)
            packed = torch.cat(parts, dim=1)
            together = model(packed, attention_mask=None, position_ids=positions, use_cache=False).logits
        return float((alone - together).abs().max())

    def rows(self) -> dict[str, Any]:
        """Our parquet as verl's data set reads it, long prompts dropped as by its own tokenizer."""
        from verl.utils import hf_tokenizer
        from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

        config = compose_config(self.lines["job"])
        dataset = RLHFDataset(config.data.train_files, hf_tokenizer(str(self.folder / "start")), config.data)
        batch = collate_fn([dataset[at] for at in range(len(dataset))])
        return {
            "keys": [info["id"] for info in batch["extra_info"]],
            "index": [int(index) for index in batch["index"]],
            "prompt": batch["raw_prompt"][0],
            "sources": sorted(set(batch["data_source"])),
        }

    def steps(self) -> list[list[list[str]]]:
        """Rows written by steps, as verl's sampler and loader give them: whole, and resumed after each step."""
        from torchdata.stateful_dataloader import StatefulDataLoader
        from verl.trainer.ppo.utils import create_rl_sampler
        from verl.utils import hf_tokenizer
        from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

        path = self.folder / "steps.parquet"
        environments = {"default": CONTRACT_ENVIRONMENT}
        write_verl_steps(self.folder / "rows.parquet", path, environments, [[1, 0], [2, 1], [0, 2]])
        shared = self.plan.options.model_copy(update={"shares": {"default": 1.0}})
        overrides = verl_overrides(self.plan.model_copy(update={"options": shared}), verl_files())
        config = compose_config([*override_lines(overrides), f"data.train_files={path}"])
        dataset = RLHFDataset(config.data.train_files, hf_tokenizer(str(self.folder / "start")), config.data)

        def loader() -> Any:
            sampler = create_rl_sampler(config.data, dataset)
            return StatefulDataLoader(dataset, 2, num_workers=0, drop_last=True, collate_fn=collate_fn, sampler=sampler)

        def keys(batches: Any) -> list[list[str]]:
            return [[info["id"] for info in batch["extra_info"]] for batch in batches]

        found = [keys(loader())]
        for step in (1, 2):
            first, resumed = loader(), loader()
            batches = iter(first)
            done = keys(next(batches) for _ in range(step))
            resumed.load_state_dict(first.state_dict())
            found.append([*done, *keys(resumed)])
        return found


class CallsHost(LoopHost):
    """Rewards mean calls minus own calls."""

    def _rewards(self, sample: Any, group: Any) -> Any:
        from dataclasses import replace

        rewards = group_rewards(
            group.items, sample.question.answers, sample.question.domain, 0.0, 0.0, dialect=TOOL_DIALECT
        )
        mean = sum(reward.tool_calls for reward in rewards) / len(rewards)
        return [replace(reward, reward=mean - reward.tool_calls) for reward in rewards]


class ContractHost(LoopHost):
    """Follows the plan."""


WIDE = CONTRACT_ENVIRONMENT.model_copy(update={"max_total_calls": None})


def _refusal(lines: list[str]) -> str:
    try:
        compose_config(lines)
    except ConfigError as error:
        return str(error)
    return ""


def _batch(rows: list[dict[str, Any]]) -> Any:
    """Return what verl's trainer passes to a worker; sessions of a group are adjacent."""
    from tensordict import TensorDict
    from verl import DataProto

    counts: dict[str, int] = {}
    sessions = []
    for row in rows:
        sessions.append(counts.get(row["uid"], 0))
        counts[row["uid"]] = sessions[-1] + 1
    columns = {key: _objects([row[key] for row in rows]) for key in rows[0]}
    columns["session_id"] = np.array(sessions)
    columns["index"] = np.array([row["extra_info"]["index"] for row in rows])
    columns["raw_prompt"] = _objects([[{"role": "user", "content": "?"}] for _ in rows])
    dummy = TensorDict({"dummy": torch.zeros(len(rows), 1)}, batch_size=len(rows))
    return DataProto(batch=dummy, non_tensor_batch=columns, meta_info={"global_steps": 1})


def _objects(values: list[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _advantages(batch: Any) -> list[float]:
    """By verl's own estimator, one per trajectory."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    mask = batch.batch["response_mask"]
    advantages, _ = compute_grpo_outcome_advantage(batch.batch["rm_scores"], mask, batch.non_tensor_batch["uid"])
    return [float(row[keep.bool()][0]) for row, keep in zip(advantages, mask, strict=True)]


def main(answer: str, folder: str) -> None:
    """All checks, one after the other."""
    with ExitStack() as opened:
        Path(answer).write_text(json.dumps(_found(Probe(Path(folder), opened))))


def _found(probe: Probe) -> dict[str, Any]:
    found: dict[str, Any] = {"branches": CONTRACT_BRANCHING.initial_rollouts}
    found["composed"] = probe.composed()
    found["rows"] = probe.rows()
    found["steps"] = probe.steps()
    found["example_a"] = probe.example_a()
    found["packed"] = probe.packed()
    for name in ("worked_example", "contract", "credited"):
        found[name] = asyncio.run(getattr(probe, name)())
    return found


if __name__ == "__main__":
    main(*sys.argv[1:3])
