"""Real vLLM scores given token ids as the model's own forward pass does, however often and in whatever batch."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.environments import engine_environ, python_of
from treadle.core.engines.serving import ServedModel, embedded_folder
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import CompletionRequest
from treadle.core.work_clock import timed_work

TEXTS = (
    "<|im_start|>user\nWhich city is the capital of France?<|im_end|>\n<|im_start|>assistant\nParis.<|im_end|>",
    "def add(a, b):\n    return a + b\n" * 12,
)
FORWARD = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
made = []
for ids in json.loads(sys.argv[2]):
    ids = torch.tensor([ids])
    with torch.no_grad():
        logprobs = model(ids).logits[0, :-1].log_softmax(-1)
    made.append(logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist())
print(json.dumps(made))
"""


@pytest.mark.covers("sweet-16")
def test_prompt_log_probabilities_are_those_of_the_model(served_embedded_model: ServedModel) -> None:
    folder = embedded_folder("model")
    tokenizer = ChatTokenizer.load(folder)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    argv = [str(python_of("serve")), "-c", FORWARD, str(folder), json.dumps(prompts)]
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    expected = json.loads(done.stdout.splitlines()[-1])
    first, again = asyncio.run(scored(served_embedded_model, tokenizer, prompts))
    for known, found, other in zip(expected, first, again, strict=True):
        assert found == pytest.approx(known, abs=2e-3)
        assert sum(found) == pytest.approx(sum(other), abs=1e-3), "equal models give no advantage"


async def scored(
    server: ServedModel, tokenizer: ChatTokenizer, prompts: list[list[int]]
) -> list[list[tuple[float, ...]]]:
    """Return the log-probabilities of each prompt, asked alone and then together, when the server knows them."""
    settings = ModelSettings.model_validate({"model": server.model, "endpoints": [{"url": server.url}]})
    async with ModelPool("m", settings) as pool:
        await pool.check(tokenizer)
        alone = [await score(pool, prompt) for prompt in prompts]
        return [alone, list(await asyncio.gather(*(score(pool, prompt) for prompt in prompts)))]


async def score(pool: ModelPool, prompt: list[int]) -> tuple[float, ...]:
    """Return the log-probabilities of a prompt's ids after the first."""
    request = CompletionRequest(prompt, 1, Sampling(temperature=0.0, top_p=1.0, max_tokens=1), (), 0, True)
    with timed_work() as clock:
        found = await pool.complete(request, session="", deadline=clock.time() + 300)
    assert found.prompt_logprobs is not None
    return found.prompt_logprobs
