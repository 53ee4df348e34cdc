"""Looks at the engine `trl` from inside its environment; prints one line of JSON.

`python trl_engine_checks.py POLICY JOB`: POLICY is the folder of a small policy, JOB a job that trains it with LoRA.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from support.credit.trl_check import attributed
from support.training.rewards import group_rewards
from support.training.scripted_groups import CONTRACT_JOBS, contract_generator, contract_rollouts, runs_of
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core.chat import ChatTokenizer
from treadle.core.engines.events import EventFile
from treadle.core.errors import ConfigError
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import CompletionRequest
from treadle.rl.config import RlOptions
from treadle.rl.engine.__main__ import main as engine
from treadle.rl.engine.generation import PolicyGenerator
from treadle.rl.engine.group_source import ScoredGroup
from treadle.rl.engine.rows import first_prompt, job_environments
from treadle.rl.engine.trl import commands as trl_commands
from treadle.rl.engine.trl import rollout_function
from treadle.rl.engine.trl import trainer as trl_trainer
from treadle.rl.engine.trl.events import TrlReporter
from treadle.rl.groups.attempts import require_groups
from treadle.rl.groups.group import GroupTrajectory
from treadle.rl.groups.samples import GroupSample
from treadle.rl.training.plan import RlPlan
from treadle.rl.trl.config import trl_arguments


def main(policy: Path, job_path: Path) -> dict[str, Any]:
    """Everything."""
    job = json.loads(job_path.read_text())
    plan = RlPlan.from_json(json.dumps(job["plan"]))
    codec = ChatTokenizer.load(policy)
    return {
        "generation": generation(policy, first_prompt(Path(job["rows"]), job_environments(job), codec)),
        "log_probs": log_probs_agree(policy, plan),
        "contract": contract(policy, plan),
        "updates": updates(policy, plan),
        "credit": credit(policy, plan),
        "attributed": [
            _attributed(policy, plan, outcome_on="last_step"),
            _attributed(policy, plan, scheme="allocation"),
            _attributed(policy, plan, prm_steps=1),
        ],
        "several": several_samples(policy, plan),
        "windows": windows(),
        "refused": refused_policy(job),
        "muted": muted(job),
        "lora": lora(job),
    }


def generation(policy: Path, base: list[int]) -> dict[str, Any]:
    """Batched, cached generation against one forward pass per token; and whether neighbours change a draw."""
    codec = ChatTokenizer.load(policy)
    model = AutoModelForCausalLM.from_pretrained(str(policy), dtype=torch.float32).eval()
    generator = PolicyGenerator(model, codec)
    greedy, free = Sampling(temperature=0.0, top_p=1.0), Sampling(temperature=1.5, top_p=1.0)

    def request(prompt: list[int], sampling: Sampling, seed: int = 0, stop: tuple[str, ...] = ()) -> CompletionRequest:
        return CompletionRequest(prompt, 24, sampling, stop, seed)

    prompts = [base, base, base[:7], [*base[:7], 65, 66]]
    first = generator.generate([request(prompt, greedy) for prompt in prompts])
    # A next turn: what was written, with something put after it; and one that begins like another's.
    turns = [[*prompt, *answer.token_ids, 48, 49] for prompt, answer in zip(prompts, first, strict=True)]
    turns.append([*base, *first[0].token_ids[:3], 50])
    second = generator.generate([request(turn, greedy) for turn in turns])
    expected = [_one_by_one(model, codec, prompt, 24) for prompt in [*prompts, *turns]]
    drawn = [request(base, free, seed) for seed in range(8)]
    together = [answer.token_ids for answer in generator.generate(drawn)]
    generator.clear_cache()
    alone = [generator.generate([one])[0].token_ids for one in reversed(drawn)][::-1]
    stopped = generator.generate([request(base, greedy, stop=("</think>", "</python>"))])[0]
    row = torch.tensor([[*base, *stopped.token_ids]])
    with torch.no_grad():
        # The model has a few ids more than the tokenizer.
        scores = model(row).logits[0, len(base) - 1 : -1, : codec.vocab_size].log_softmax(-1)
    by_hand = scores.gather(1, torch.tensor(stopped.token_ids)[:, None])[:, 0]
    return {
        "greedy_agrees": [list(answer.token_ids) for answer in [*first, *second]] == expected,
        "draws_agree": together == alone,
        "distinct_draws": len(set(together)),
        "stopped": [stopped.text, stopped.stop_reason, stopped.finish_reason],
        "logprob_error": float((by_hand - torch.tensor(stopped.logprobs)).abs().max()),
    }


def _one_by_one(model: Any, codec: ChatTokenizer, prompt: list[int], most: int) -> list[int]:
    ids = list(prompt)
    while len(ids) - len(prompt) < most:
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] in codec.eos_ids:
            break
    return ids[len(prompt) :]


class _ScriptedSource:
    """Groups of the scenario that every engine plays alike."""

    def __init__(self, codec: ChatTokenizer) -> None:
        self.made = asyncio.run(require_groups(contract_rollouts(contract_generator(codec), codec), CONTRACT_JOBS))

    def step(self, step: int, rows: list[Task], first: int) -> list[ScoredGroup]:
        """All of them, whatever is asked."""
        return [
            ScoredGroup(group, group_rewards(group.items, row.answers, "math", 0.1, 0.1, dialect=TOOL_DIALECT))
            for group, row in zip(self.made, rows, strict=True)
        ]

    def credited(self, groups: list[ScoredGroup], step: int) -> list[ScoredGroup]:
        """Return the groups as they are: TRL computes the advantages."""
        return groups


class _PerTurnSource(_ScriptedSource):
    """The same groups, with the number of each turn, from 1, as its advantage."""

    def credited(self, groups: list[ScoredGroup], step: int) -> list[ScoredGroup]:
        """Return the groups with these advantages."""
        return [
            replace(
                one,
                advantages=[[1.0 + turn for turn in range(len(made.turn_starts))] for made in one.group.trajectories],
            )
            for one in groups
        ]


class _SplitSource(_ScriptedSource):
    """The same groups; every other trajectory has a sample for each turn, which sees what the whole one saw."""

    def step(self, step: int, rows: list[Task], first: int) -> list[ScoredGroup]:
        """All of them, whatever is asked."""
        return [
            replace(
                one,
                group=replace(
                    one.group,
                    trajectories=[_split(made) if made.session % 2 else made for made in one.group.trajectories],
                ),
            )
            for one in super().step(step, rows, first)
        ]


def _split(made: GroupTrajectory) -> GroupTrajectory:
    (whole,) = made.samples
    ends = [*whole.turn_starts[1:], len(whole.completion_ids)]
    parts = [
        GroupSample(
            [*whole.prompt_ids, *whole.completion_ids[:start]],
            whole.completion_ids[start:end],
            whole.env_mask[start:end],
            whole.logprobs[start:end],
            [0],
        )
        for start, end in zip(whole.turn_starts, ends, strict=True)
    ]
    return replace(made, samples=parts)


def several_samples(policy: Path, plan: RlPlan) -> dict[str, Any]:
    """Gradients of trajectories of several samples, in batches that are filled up, against those of whole ones."""
    codec = ChatTokenizer.load(policy)
    found: dict[str, Any] = {}
    for name, kind in (("whole", _ScriptedSource), ("split", _SplitSource)):
        for questions in (1, 3):
            with _folder() as folder:
                scripted = _scripted_plan(plan, mini_batch_prompts=questions, per_device_batch_size=4)
                trainer = _trainer(policy, scripted, folder, kind(codec))
                found[f"{name}-{questions}"] = _update_gradients(trainer)
    answer = {}
    for questions in (1, 3):
        whole, split = found[f"whole-{questions}"], found[f"split-{questions}"]
        answer[str(questions)] = {
            "error": max(
                float((one - other).abs().max() / one.abs().max())
                for one, other in zip(whole["gradients"], split["gradients"], strict=True)
            ),
            "rows": [whole["rows"], split["rows"]],
            "fillers": [whole["fillers"], split["fillers"]],
            "rewards": [whole["reward"], split["reward"]],
        }
    return answer


def _update_gradients(trainer: Any) -> dict[str, Any]:
    """Return the gradient of each update of a step, with the policy's own log-probabilities."""
    batch = next(iter(trainer.get_train_dataloader()))
    gradients, rows, fillers = [], 0, 0
    size = trainer.args.gradient_accumulation_steps
    trainer.current_gradient_accumulation_steps = size
    for step in range(trainer.args.steps_per_generation):
        trainer._step = step
        inputs = trainer._prepare_inputs(batch)
        rows += len(inputs["completion_ids"])
        fillers += int(((inputs["completion_mask"] * inputs["tool_mask"]).sum(1) == 0).sum())
        loss = trainer._compute_loss(trainer.model, inputs)
        trainer.accelerator.backward(loss)
        if (step + 1) % size == 0:
            parameters = [one for one in trainer.model.parameters() if one.grad is not None]
            gradients.append(torch.cat([one.grad.flatten() for one in parameters]))
            trainer.model.zero_grad()
    (reward,) = trainer._metrics["train"]["reward"]
    return {"gradients": gradients, "rows": rows, "fillers": fillers, "reward": reward}


def _trainer(policy: Path, plan: RlPlan, folder: Path, source: Any, **arguments: Any) -> Any:
    rows = [Task(f"key-{index}", f"Question {index}?", domain="math", answers=("12",)) for index in range(3)]
    config = GRPOConfig(**{**trl_arguments(plan, folder), **arguments})
    reporter = TrlReporter(plan, EventFile(folder / "events.jsonl"), is_first=True)
    trainer, slot = trl_trainer._trainer(plan, policy, rows, config, reporter)
    slot.rollouts = rollout_function.RolloutFunction(plan, rows, source, lambda: None, reporter, folder / "rollouts")
    # TRL takes it for an evaluation otherwise.
    trainer.model.train()
    return trainer


def contract(policy: Path, plan: RlPlan) -> dict[str, Any]:
    """Run the scenario through TRL; return the content of its tensors, and where its loss has a gradient."""
    plan = _scripted_plan(plan)
    codec = ChatTokenizer.load(policy)
    with _folder() as folder:
        trainer = _trainer(policy, plan, folder, _ScriptedSource(codec))
        batch = next(iter(trainer.get_train_dataloader()))
        prompts = [example["prompt"] for example in batch]
        inputs = trainer._generate_and_score_completions(batch)
        dumped = len((folder / "rollouts" / "step-000001.jsonl").read_text().splitlines())
        groups = []
        for start in range(0, len(prompts), 8):
            rows = range(start, start + 8)
            groups.append([_facts(inputs, row, codec) for row in rows])
        rewards = list(trainer._logs["rewards"]["precomputed_rewards"])
        # Another order of the groups, and groups that are taken apart.
        refused = [_refusal(trainer, prompts[shift:] + prompts[:shift]) for shift in (8, 4)]
        gradients = _gradients(trainer, inputs)
    found = {"prompts": prompts, "dumped": dumped, "groups": groups, "rewards": rewards, "refused": refused}
    return {**found, **gradients}


def _refusal(trainer: Any, prompts: list[str]) -> str:
    try:
        trainer.rollout_func(prompts, trainer)
    except RuntimeError as error:
        return str(error)
    return ""


def updates(policy: Path, plan: RlPlan) -> list[dict[str, Any]]:
    """Run the scenario in three updates of a question each; return the content of each."""
    codec = ChatTokenizer.load(policy)
    with _folder() as folder:
        trainer = _trainer(policy, _scripted_plan(plan, mini_batch_prompts=1), folder, _ScriptedSource(codec))
        batch = next(iter(trainer.get_train_dataloader()))
        found = []
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        for step in range(trainer.args.steps_per_generation):
            trainer._step = step
            inputs = trainer._prepare_inputs(batch)
            trainer._get_per_token_logps_and_entropies = _unmoved_scores(inputs)
            loss = float(trainer._compute_loss(trainer.model, inputs))
            counted = inputs["completion_mask"] * inputs["tool_mask"]
            mean = float(-(counted * inputs["advantages"][:, None]).sum() / counted.sum())
            prompts = {_facts(inputs, row, codec)["prompt"] for row in range(len(counted))}
            found.append({"prompts": sorted(prompts), "loss": loss, "token_mean": mean})
            del trainer._get_per_token_logps_and_entropies
    return found


def _unmoved_scores(inputs: dict[str, Any]) -> Any:
    return lambda *_, **__: (inputs["old_per_token_logps"], torch.zeros_like(inputs["old_per_token_logps"]), None)


def _scripted_plan(plan: RlPlan, mini_batch_prompts: int = 3, **keys: Any) -> RlPlan:
    changes: dict[str, Any] = {"group_size": 8, "prompts_per_step": 3, "mini_batch_prompts": mini_batch_prompts, **keys}
    changes["finetuning_type"] = "full"
    options = plan.options.model_copy(update={**changes, "max_response_tokens": 512})
    return plan.model_copy(update={"options": options, "num_rows": 3, "num_validation_rows": 0})


def _facts(inputs: dict[str, Any], row: int, codec: ChatTokenizer) -> dict[str, Any]:
    attended = inputs["completion_mask"][row].bool()
    prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()]
    return {
        "prompt": codec.decode(prompt.tolist()),
        "completion": codec.decode(inputs["completion_ids"][row][attended].tolist()),
        "mask": runs_of(inputs["tool_mask"][row][attended].tolist()),
        "advantage": float(inputs["advantages"][row]),
    }


def _gradients(trainer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the gradient of TRL's loss with respect to logits in place of the policy's."""
    ids = inputs["completion_ids"]
    logits = torch.randn(*ids.shape, 264, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def scores(*_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        found = logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
        return found, torch.zeros_like(found), None

    trainer._get_per_token_logps_and_entropies = scores
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(trainer.model, inputs).backward()
    size = logits.grad.abs().amax(-1)
    attended, mask = inputs["completion_mask"].bool(), inputs["tool_mask"].bool()
    counts = attended & mask & (inputs["advantages"] != 0)[:, None]
    return {
        "gradient_at_results": float(size[attended & ~mask].max()),
        "num_results": int((attended & ~mask).sum()),
        "gradient_at_padding": float(size[~attended].max()),
        "least_gradient_at_model_tokens": float(size[counts].min()),
    }


def log_probs_agree(policy: Path, plan: RlPlan) -> dict[str, float]:
    """Log-probabilities and gradients with shared prompts against TRL's own rows, under LoRA too."""
    plan = _scripted_plan(plan)
    codec = ChatTokenizer.load(policy)
    with _folder() as folder:
        trainer = _trainer(policy, plan, folder, _ScriptedSource(codec))
        inputs = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
    lora = get_peft_model(trainer.model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, weights in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.2, generator=torch.Generator().manual_seed(len(name)))
    errors = {"lora": _difference(trainer, lora, inputs)}
    whole = lora.unload()
    whole.requires_grad_(True)
    return {**errors, "full": _difference(trainer, whole, inputs)}


def _difference(trainer: Any, model: Any, inputs: dict[str, Any]) -> float:
    """Greatest difference of values and gradients, as a share of the greatest of them."""
    found = []
    length = inputs["completion_ids"].shape[1]
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    wanted = inputs["completion_mask"] * inputs["tool_mask"]
    for shares in (True, False):
        trainer.shares_prompts = shares
        # As in a loss: what is not scored is not computed.
        trainer._scored_tokens = wanted if shares else None
        model.zero_grad()
        scores = trainer._get_per_token_logps_and_entropies(model, ids, mask, length, compute_entropy=True)
        (scores[0] * wanted * torch.linspace(-1, 1, length)).sum().backward()
        moved = [weights.grad.flatten() for weights in model.parameters() if weights.grad is not None]
        found.append((scores[0] * wanted, scores[1] * wanted, torch.cat(moved)))
    return max(
        float(((left - right).abs().max() / right.abs().max()).detach()) for left, right in zip(*found, strict=True)
    )


def credit(policy: Path, plan: RlPlan) -> list[dict[str, Any]]:
    """Run the scenario with advantages per turn in three updates; return what the loss gets for each token, and it."""
    codec = ChatTokenizer.load(policy)
    with _folder() as folder:
        trainer = _trainer(policy, _scripted_plan(plan, mini_batch_prompts=1), folder, _PerTurnSource(codec))
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        found = []
        for step in range(trainer.args.steps_per_generation):
            trainer._step = step
            inputs = trainer._prepare_inputs(batch)
            trainer._get_per_token_logps_and_entropies = _unmoved_scores(inputs)
            loss = float(trainer._compute_loss(trainer.model, inputs))
            del trainer._get_per_token_logps_and_entropies
            counted = inputs["completion_mask"] * inputs["tool_mask"]
            # Results separate the turns, so each run of sampled ids is one.
            turns = (counted.diff(dim=1, prepend=torch.zeros_like(counted[:, :1])) > 0).cumsum(dim=1)
            agrees = bool((counted * (inputs["advantages"] - turns) == 0).all())
            mean = float(-(counted * turns).sum() / counted.sum())
            found.append({"agrees": agrees, "most_turns": int(turns.max()), "loss": loss, "token_mean": mean})
        logged = sorted(name for name in trainer._metrics["train"] if name.startswith("parts/"))
    return [*found, {"logged": logged}]


def _attributed(policy: Path, plan: RlPlan, **keys: Any) -> dict[str, Any]:
    """Return what TRL's batch has of the worked example of attribution."""
    with _folder() as folder:
        return attributed(
            functools.partial(_scripted_plan, plan),
            lambda scripted, into, source: _trainer(policy, scripted, into, source),
            ChatTokenizer.load(policy),
            folder,
            **keys,
        )


def windows() -> list[int | None]:
    """Return the longest contexts of models with and without a limit, alone and with vLLM."""
    found = []
    for bound, use_vllm in ((1024, False), (1024, True), (256, True), (None, True), (None, False)):
        text = SimpleNamespace(max_position_embeddings=bound)
        model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda text=text: text))
        arguments = SimpleNamespace(vllm_max_model_length=460)
        trainer: Any = SimpleNamespace(model=model, use_vllm=use_vllm, args=arguments)
        found.append(trl_trainer._max_context_tokens(trainer))
    return found


def refused_policy(job: dict[str, Any]) -> str:
    """Return the message for a policy of another kind; there are no weights to load."""
    with _folder() as folder:
        (folder / "config.json").write_text('{"model_type": "gemma2"}')
        try:
            trl_commands.check({**job, "model": str(folder)}, EventFile(folder / "events.jsonl"))
        except ConfigError as error:
            return str(error)
    return ""


def muted(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Train all weights on trajectories whose masks are 0, with the default weight decay: the events."""
    options = {**job["plan"]["options"], "finetuning_type": "full", "learning_rate": RlOptions().learning_rate}
    given = rollout_function._to_trl

    def silenced(made: Any) -> dict[str, Any]:
        answer = given(made)
        return {**answer, "env_mask": [[0] * len(mask) for mask in answer["env_mask"]]}

    rollout_function._to_trl = silenced
    with _folder() as folder:
        names = {"output": "output", "events": "events.jsonl", "rollouts": "rollouts"}
        paths = {name: str(folder / path) for name, path in names.items()}
        job_path = folder / "job.json"
        job_path.write_text(json.dumps({**job, "plan": {**job["plan"], "options": options}, **paths}))
        code = engine("train", str(job_path))
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    rollout_function._to_trl = given
    return [*events, {"event": "exit", "code": code}]


def lora(job: dict[str, Any]) -> dict[str, Any]:
    """Train with adapters, and write the merged policy."""
    events = EventFile(Path(job["events"]))
    trl_commands.train(job, events)
    state = max(Path(job["output"]).glob("checkpoint-*"))
    trl_commands.finish({**job, "state": str(state)}, events)
    return {"state": sorted(path.name for path in state.iterdir())}


@contextlib.contextmanager
def _folder() -> Any:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
