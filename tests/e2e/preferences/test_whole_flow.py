"""The recipe `sweet` as one command, with LLaMA-Factory, TRL and vLLM: killed, run again, and nothing hidden told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.preferences.whole_flow import CANARY, NUM_GUIDED, write_flow
from support.rollouts.small_demo import finish, kill_when

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.serving import embedded_folder
from treadle.core.journal.journal import count_finished
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.tables import TABLES

pytestmark = pytest.mark.sweep

OPEN = {"1/questions": frozenset({"payload"}), "1/preferences@trajectory": frozenset({"messages", "prompt_ids"})}
"""Results that state hidden information, and the columns that do."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A finished flow, which was killed while the critic chose turns; what both commands printed and reported."""

    run: Run
    num_before: int
    said: tuple[str, ...]

    def record(self, address: str) -> StageRecord:
        """Return the result of an instance."""
        found = self.run.record(Address.parse(address))
        assert found is not None, address
        return found

    def rows(self, address: str, kind: str) -> list[dict[str, Any]]:
        """Return the rows of a result."""
        return list(self.run.rows(self.record(address).outputs[kind]).rows())


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    folder = tmp_path_factory.mktemp("sweet")
    root = folder / "root"
    command = ("run", str(write_flow(folder)), "--run", "sweet", "--root", str(root))
    journal = root / "runs" / "sweet" / "journal" / "1" / "guided_rollouts"

    def num_finished() -> int:
        return sum(count_finished(one) for one in journal.glob("*"))

    kill_when(lambda: num_finished() > 0, "the critic chooses turns", command, folder / "first")
    before = num_finished()
    said = finish(command, folder / "second", limit_s=1500)
    first = (folder / "first").read_text(), (folder / "first.err").read_text()
    yield Flow(Run.open(root, "sweet"), before, (*first, *said))


def test_killed_flow_resumes_and_every_engine_takes_its_step(flow: Flow) -> None:
    assert 0 < flow.num_before < NUM_GUIDED
    assert f"{flow.num_before} of {NUM_GUIDED} rollouts already finished" in flow.said[-1]
    assert "Traceback" not in flow.said[-1]
    for address in ("1/sft", "1/dpo@critic", "1/dpo@policy"):
        assert flow.record(address).metrics["steps"] > 0, address
        (row,) = flow.rows(address, "checkpoint")
        assert row["base_model"] == ("1/sft" if "dpo" in address else "embedded")
    attempts = {one: len(flow.run.attempts(Address.parse(one))) for one in ("1/dpo@critic", "1/guided_rollouts")}
    assert attempts == {"1/dpo@critic": 1, "1/guided_rollouts": 2}
    assert {row["model"] for row in flow.rows("1/rollouts@policy", "rollouts")} == {"policy"}


def test_critic_prefers_turns_and_pairs_are_made_of_them(flow: Flow) -> None:
    assert any(row["advantage"] for row in flow.rows("1/advantages", "advantages"))
    assert flow.rows("1/preferences@turn", "preferences")
    rows = flow.rows("1/guided_rollouts", "guided_rollouts")
    assert len(rows) == NUM_GUIDED and all(row["score"] is not None for row in rows)
    for choice in (choice for row in rows for choice in row["choices"]):
        advantages = {one["candidate"]: one["advantage"] for one in choice["scored"]}
        assert not advantages or advantages[choice["chosen"]] == max(advantages.values())
    metrics = flow.record("1/guided_rollouts").metrics
    assert metrics["scored_turns"] > 0 and metrics["common.tasks"] == metrics["tasks"]


@pytest.mark.covers("sweet-6")
def test_hidden_information_reaches_the_critic_and_no_policy_row_prompt_or_log(flow: Flow) -> None:
    tokenizer = ChatTokenizer.load(embedded_folder("model"))

    def tells(value: Any) -> bool:
        if isinstance(value, dict):
            return any(map(tells, value.values()))
        if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
            return CANARY in tokenizer.decode(value)
        return any(map(tells, value)) if isinstance(value, list) else CANARY in str(value)

    told, num_rows = set(), 0
    for record in flow.run.records():
        allowed = OPEN.get(record.address, frozenset())
        for kind, made in record.outputs.items():
            for row in flow.run.rows(made).rows(TABLES[kind].schema.names):
                found = {name for name, value in row.items() if tells(value)}
                assert found <= allowed, (record.address, found)
                told |= {record.address} if found else set()
                num_rows += 1
    assert num_rows > 50 and told == OPEN.keys(), "tasks and the prompts of the critic state it, nothing else"
    folder = Path(flow.run.storage.directory(""))
    logs = [path for path in folder.rglob("*") if path.suffix in (".log", ".txt", ".md", ".html", ".yaml")]
    servers = [Path(name) for text in flow.said for name in re.findall(r"^starting .* log: (\S+)", text, re.MULTILINE)]
    assert logs and servers and not [path for path in (*logs, *servers) if CANARY in path.read_text(errors="replace")]
    assert not any(CANARY in text for text in flow.said)
