"""A teacher that only chats tunes a student: pools over chat, rows, LLaMA-Factory, held-out questions."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rollouts.small_demo import finish

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.serving import embedded_folder
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.demo.world_files import write_world

pytestmark = pytest.mark.sweep
"""In CI, `tests/stages/pools/test_rows_of_a_chat_teacher.py` makes the rows and `test_sft.py` trains."""

CONFIG = """
[flow]
stages = ["pools", "sft_rows", "sft", "rollouts", "scores"]
models = ["student"]

[models.teacher]
model = "treadle-tutor"
api = "chat"
server = {{ type = "tutor", persona = "noisy" }}

[models.student]
model = "student"
server = {{ type = "vllm", model = "1/sft", max_model_len = 1024, dtype = "float32" }}

[questions]
sources = [{{ path = "{world}/questions.jsonl", source_field = "source", split_field = "split" }}]

[questions.domains]
world-lookup = "qa"
world-hops = "qa"
world-compare = "qa"
world-compute = "math"
world-arithmetic = "math"

[environment]
system_prompt = 'Think in <think>, call <search>, read the <result>, and end with <answer>\\boxed{{}}</answer>.'
max_turns = 2
rollout_time_s = 300.0
python.enabled = false

[environment.search]
corpus = ["{world}/corpus.jsonl"]
top_n = 1
document_chars = 200

[pools]
rounds = 1
roles.policy.model = "teacher"

[sft_rows]
tokenizer = "embedded"

[sft]
model = "embedded"
max_rows = 8
batch_size = 4
finetuning_type = "lora"

[rollouts]
split = "heldout"
max_questions = 2
sampling = {{ temperature = 0.0, max_tokens = 48 }}
"""


@pytest.fixture(scope="module")
def run(serve_environment: Path, sft_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the finished run."""
    folder = tmp_path_factory.mktemp("teacher")
    write_world(folder / "world", documents=100, questions=10, heldout_questions=4, tiers=(0,))
    (folder / "teacher.toml").write_text(CONFIG.format(world=folder / "world"))
    finish(("run", str(folder / "teacher.toml"), "--run", "t", "--root", str(folder / "root")), folder / "said", 900)
    return Run.open(folder / "root", "t")


def test_rows_of_a_chat_teacher_tune_a_student_that_answers_held_out_questions(run: Run) -> None:
    def rows(address: str, kind: str) -> list[dict[str, object]]:
        record = run.record(Address.parse(address))
        assert record is not None
        return list(run.rows(record.outputs[kind]).rows())

    digest = ChatTokenizer.load(embedded_folder("tokenizer")).digest
    pools, made = rows("1/pools", "pools"), rows("1/sft_rows", "sft_rows")
    assert {row["tokenizer_digest"] for row in pools} == {""} and len({row["operator"] for row in pools}) > 2
    assert {row["tokenizer_digest"] for row in made} == {digest}
    assert all(len(row["input_ids"]) == len(row["labels"]) == row["num_tokens"] > 0 for row in made)  # type: ignore[arg-type]
    (checkpoint,) = rows("1/sft", "checkpoint")
    assert checkpoint["tokenizer_digest"] == digest and checkpoint["num_rows"] == 8
    answers = rows("1/rollouts@student", "rollouts")
    assert len(answers) == 2 and all(row["text"] and row["samples"] for row in answers)
    assert len(rows("1/scores@student", "scores")) == 2
