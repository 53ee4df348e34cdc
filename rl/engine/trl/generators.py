"""Choose the generator of a training's completions: vLLM, or the policy in training itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from treadle.core.chat import ChatTokenizer
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.rl.engine.generation import PolicyGenerator
from treadle.rl.engine.trl.events import TrlReporter
from treadle.rl.engine.trl.group_trainer import GroupTrainer
from treadle.rl.groups.batching import Generate
from treadle.rl.training.plan import RlPlan


def open_generator(
    plan: RlPlan, trainer: GroupTrainer, codec: ChatTokenizer, reporter: TrlReporter
) -> tuple[Generate, Callable[[], None], int | None]:
    """Return functions that generate and that load new weights, and the maximum batch size (None: no limit)."""
    if trainer.use_vllm:
        from treadle.rl.engine.vllm_generation import VllmGenerator

        served = VllmGenerator(trainer, codec)
        return _with_heartbeat(served.generate, reporter), served.refresh, None
    own = PolicyGenerator(
        trainer.model,
        codec,
        autocast=trainer.accelerator.autocast,
        dtype=torch.bfloat16 if trainer.args.bf16 else torch.float32,
        with_entropies=plan.options.branches,
    )
    longest = plan.options.max_prompt_tokens + plan.options.max_response_tokens
    return _with_heartbeat(own.generate, reporter), own.clear_cache, own.num_sequences(longest)


def _with_heartbeat(generate: Generate, reporter: TrlReporter) -> Generate:
    def generate_with_heartbeat(requests: Sequence[CompletionRequest]) -> Sequence[Completion]:
        answers = generate(requests)
        reporter.heartbeat()
        return answers

    return generate_with_heartbeat
