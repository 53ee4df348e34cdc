"""Groups of rollouts with native tool calls, as an engine makes them: schemas in prompts, masks, rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.tool_templates import call_text, load_tool_tokenizer
from support.training.verl_plans import verl_plan

from treadle.agent.contract import Task
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.environments.registry import ENVIRONMENTS
from treadle.rl.engine.group_source import open_source
from treadle.rl.engine.rows import Payloads, read_tasks
from treadle.rl.training.stored_rows import prompt_fits
from treadle.rl.verl.rows import TRAINING_SCHEMA

SETTINGS = ENVIRONMENTS.parse(
    {
        "dialect": "functions",
        "python": {"enabled": False},
        "search": {"enabled": False},
        "tools": {"population": {"type": "support.rollouts.own_tools:population", "max_calls": 2}},
    }
)
CODEC = load_tool_tokenizer("qwen")


def generate(requests: list[CompletionRequest]) -> list[Completion]:
    return [_answer(request) for request in requests]


def _answer(request: CompletionRequest) -> Completion:
    assert isinstance(request.prompt, list)
    prompt = CODEC.decode(request.prompt)
    assert '"name": "population"' in prompt
    result = prompt.rpartition("<tool_response>\n")[2].partition("\n")[0] if "<tool_response>" in prompt else ""
    text = f"It is \\boxed{{{result}}}" if result else call_text("hermes", "population", {"town": "Tazpo"})
    ids = (*CODEC.encode(text), CODEC.turn_end_ids[0])
    return Completion(text, ids, "stop", None, len(request.prompt), len(ids), "", 0, 0, (-0.5,) * len(ids))


def tasks(folder: Path) -> list[Task]:
    blank = {name: None for name in TRAINING_SCHEMA.names} | {"choices": [], "dataset": "towns", "domain": "math"}
    blank |= {"environment": "default"}
    rows = [
        blank | {"question_key": str(year), "question": "How many people live in Tazpo?", "answers": [str(year)]}
        for year in (1812, 7)
    ]
    pq.write_table(pa.Table.from_pylist(rows, TRAINING_SCHEMA), folder / "rows.parquet")
    return read_tasks(folder / "rows.parquet", Payloads(None))


def test_groups_call_tools_and_are_rewarded_by_their_answers(tmp_path: Path) -> None:
    plan: Any = verl_plan(num_rows=8, environment=SETTINGS, group_size=2, prompts_per_step=2, mini_batch_prompts=2)
    with open_source(plan, {}, {"default": SETTINGS}, generate, CODEC, max_model_len=None, max_batch=None) as source:
        groups = source.step(1, tasks(tmp_path))
    right, wrong = groups
    assert all(reward.reward > 0.5 for reward in right.rewards)
    assert all(reward.reward <= 0 for reward in wrong.rewards)
    made = right.group.trajectories[0]
    assert [(call.tool, call.text) for call in made.trajectory.calls] == [("population", "1812")]
    pairs = list(zip(made.completion_ids, made.env_mask, strict=True))
    sampled = CODEC.decode([one for one, mask in pairs if mask])
    written = CODEC.decode([one for one, mask in pairs if not mask])
    assert "<tool_call>" in sampled and "tool_response" not in sampled
    assert "<tool_response>\n1812\n</tool_response>" in written


def test_length_of_a_prompt_counts_the_schemas_of_tools() -> None:
    row = {"question_key": "a", "question": "How many?", "choices": [], "dataset": "towns", "domain": "math"}
    messages = SETTINGS.first_messages(Task.from_row(row))
    assert messages is not None
    without = len(CODEC.prompt_ids(messages))
    whole = len(CODEC.prompt_ids(messages, [tool.as_openai() for tool in SETTINGS.known_tools]))
    assert whole > without + 20
    assert not prompt_fits({"default": SETTINGS}, CODEC, without)(row)
    assert not prompt_fits({"default": SETTINGS}, CODEC, whole - 1)(row)
    assert prompt_fits({"default": SETTINGS}, CODEC, whole)(row)
