"""The scenario that every training engine must play alike, here without an engine (specification, section 5.5)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.training.scripted_groups import CONTRACT_JOBS, contract_facts, contract_generator, contract_rollouts

from treadle.core.chat import ChatTokenizer
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.rl.groups.attempts import require_groups
from treadle.rl.groups.batching import BatchedModel, BatchMembership

GOLDEN = Path(__file__).parents[2] / "golden" / "group_rollouts.json"


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


@pytest.mark.covers("pareto-33")
async def test_scenario_produces_the_recorded_values(codec: ChatTokenizer) -> None:
    model = contract_generator(codec)
    facts = contract_facts(await require_groups(contract_rollouts(model, codec), CONTRACT_JOBS), codec)
    assert facts == json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.covers("pareto-33")
async def test_batches_equal_single_requests(codec: ChatTokenizer) -> None:
    membership = BatchMembership()
    with BatchedModel(contract_generator(codec), membership, max_batch=5) as model:
        groups = await require_groups(contract_rollouts(model, codec, membership), CONTRACT_JOBS)
    assert contract_facts(groups, codec) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_scenario_covers_all_adapter_pitfalls() -> None:
    groups = json.loads(GOLDEN.read_text(encoding="utf-8"))
    items = [item for group in groups for item in group["items"]]
    assert {item["finish"] for item in items} >= {"answered", "no_answer", "length", "limit"}
    assert {item["branch_depth"] for item in items} >= {0, 1, 2}
    assert max(item["tool_calls"] for item in items) == 3
    assert any(item["tool_failures"] for item in items)
    assert all(any(item["advantage"] for item in group["items"]) for group in groups)
    ends = [item["completion"] for item in items if item["finish"] == "no_answer"]
    assert all(text.endswith("<|im_end|>") for text in ends)
    assert any("<result><|im_end|> the number: 12</result>" in item["completion"] for item in items)
