"""An environment of one's own through the whole product: teacher, tuned student, reinforcement, report.

Only `environment.type` says what the tasks are. vLLM, LLaMA-Factory and TRL are real; the teacher is scripted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.rollouts.guess_desk import guide_code, halving
from support.runs.command_line import Desk, Done
from support.servers.scripted_server import served

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.serving import embedded_folder
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.tables import MODEL_FOLDER

pytestmark = pytest.mark.sweep
"""`test_demo.py` and `test_rl_mixture.py` train by the same engines in CI."""

CANARY = "canary-7e41d0"
TOP, NUM_STEPS, GROUP_SIZE = 30, 2, 4
SECRETS = (2, 6, 9, 13, 17, 22, 25, 29)
CONFIG = f"""
[flow]
stages = ["rollouts", "scores", "sft_rows", "sft", "selection", "rl", "report"]
models = ["teacher"]

[models.teacher]
model = "scripted"
tokenizer = "%s"
endpoints = [{{ url = "%s" }}]

[models.tuned]
model = "tuned"
server = {{ type = "vllm", model = "1/sft", max_model_len = 512, dtype = "float32" }}

[questions]
sources = [{{ path = "tasks.jsonl", dataset = "guess", payload = ["secret", "note"] }}]

[environment]
type = "my_envs.py:Guess"
top = {TOP}
max_turns = 5

[sft]
model = "embedded"
batch_size = 4
learning_rate = 4e-4
num_train_epochs = 3

[curriculum]
phases = 1
sampling_model = "tuned"

[curriculum.rollouts]
samples_per_question = 4
sampling = {{ temperature = 1.0, max_tokens = 12 }}

[rl]
group_size = {GROUP_SIZE}
prompts_per_step = 2
mini_batch_prompts = 2
num_epochs = 2
max_steps = {NUM_STEPS}
max_prompt_tokens = 80
max_response_tokens = 160
max_new_tokens = 12
"""


@pytest.fixture(scope="module")
def ran(
    serve_environment: Path, sft_environment: Path, trl_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Desk, Done]:
    """Return a finished run `guess` and what the command said."""
    tokenizer = ChatTokenizer.load(embedded_folder("tokenizer"))

    desk = Desk(tmp_path_factory.mktemp("guess"))
    (desk.folder / "my_envs.py").write_text(guide_code())
    tasks = [{"question": "Guess my number.", "secret": number, "note": CANARY} for number in SECRETS]
    desk.write("tasks.jsonl", *tasks)
    with served(halving(tokenizer, TOP), codec=tokenizer) as server:
        (desk.folder / "guess.toml").write_text(CONFIG % (tokenizer.folder, server.url))
        done = desk.treadle("run", "guess.toml", "--run", "guess").succeeded()
    return desk, done


def record(desk: Desk, address: str) -> Any:
    found = Run.open(desk.folder / "outputs", "guess").record(Address.parse(address))
    assert found is not None
    return found


def weights(desk: Desk, address: str) -> bytes:
    made = Run.open(desk.folder / "outputs", "guess").rows(record(desk, address).outputs["checkpoint"])
    return (made.folder(MODEL_FOLDER) / "model.safetensors").read_bytes()


def test_teacher_tunes_a_student_that_is_reinforced(ran: tuple[Desk, Done]) -> None:
    desk, _ = ran
    rows = desk.rows("guess", "1/sft_rows", "sft_rows")
    assert len(rows) == len(SECRETS) and all(json.loads(row["messages"])[0]["role"] == "user" for row in rows)
    tuned = record(desk, "1/sft").metrics
    assert (tuned["steps"], tuned["rows"], tuned["unmasked_rows"]) == (6, len(SECRETS), 0)
    assert tuned["target_tokens"] == sum(row["num_target_tokens"] for row in rows) > 0
    assert tuned["last_loss"] < tuned["first_loss"]
    assert record(desk, "1/rl@phase-1").metrics["steps"] == NUM_STEPS
    scores = {row["rollout_key"]: row["score"] for row in desk.rows("guess", "1/scores@phase-1", "scores")}
    sampled = desk.rows("guess", "1/rollouts@phase-1", "rollouts")
    assert any("I say" in row["text"] for row in sampled), "the student writes like its teacher"
    assert len(set(scores.values())) > 1
    trained = desk.rows("guess", "1/rl@phase-1", "rl_rollouts")
    assert len(trained) == NUM_STEPS * 2 * GROUP_SIZE and len({row["reward"] for row in trained}) > 1
    assert any("<|im_start|>user\n" in row["output"] for row in trained), "dialogues have several turns"
    before, after = (weights(desk, address) for address in ("1/sft", "1/rl@phase-1"))
    assert before != after


def test_report_and_viewer_show_the_dialogues(ran: tuple[Desk, Done]) -> None:
    desk, done = ran
    assert "teacher" in done.out and "reward" in done.out
    page = desk.treadle("report", "--run", "guess", "--out", "guess.html").succeeded()
    assert "guess.html" in page.out + page.err
    key = desk.rows("guess", "1/rollouts@phase-1", "rollouts")[0]["rollout_key"]
    shown = desk.treadle("show", key, "--run", "guess").succeeded()
    assert "I think of a number from 1 to 30." in shown.out


def test_payload_stays_in_questions(ran: tuple[Desk, Done]) -> None:
    desk, done = ran
    assert CANARY not in done.out + done.err
    holders = set()
    for path in (desk.folder / "outputs").rglob("*"):
        if path.suffix == ".parquet":
            holders |= {path.parts[-3]} if CANARY in str(pq.ParquetFile(path).read().to_pylist()) else set()
        elif path.is_file() and CANARY.encode() in path.read_bytes():
            holders.add(str(path))
    assert holders == {"questions"}
