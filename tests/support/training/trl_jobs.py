"""Jobs for the engine `trl`: a policy of a few thousand weights, questions that it can answer, and their files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import Machine
from treadle.core.engines.environments import engine_environ, python_of
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.question.settings import QuestionSettings
from treadle.rl.config import RlOptions, RlSettings
from treadle.rl.training.plan import RlPlan, plan_phase
from treadle.rl.verl.rows import TRAINING_SCHEMA

MAKER = Path(__file__).with_name("tiny_policy.py")
SUMS = ((2, 3), (4, 5), (1, 6), (3, 3))
ENVIRONMENT = QuestionSettings.model_validate(
    {
        "system_prompt": "Use Python.",
        "search": {"enabled": False},
        "python": {"max_calls": 2, "sandbox": {"packages": []}},
    }
)
OPTIONS: Mapping[str, Any] = {
    "group_size": 4,
    "prompts_per_step": 2,
    "mini_batch_prompts": 2,
    "max_prompt_tokens": 200,
    "max_response_tokens": 260,
    "max_new_tokens": 90,
    "reward": {"sigma_tool": 0.1, "sigma_length": 0.1},
    "save_steps": 1,
    "validation_steps": 1,
}


PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from support.training import trl_jobs
from treadle.core.engines.training import EngineOptions
from treadle.rl.training.launch import EngineJob, RlFolder, reinforce
from treadle.rl.training.plan import RlPlan
job = EngineJob(model=sys.argv[2], environments=trl_jobs.environments_json(), interpreter=trl_jobs.interpreter())
folder = RlFolder(Path(sys.argv[1]))
reinforce(folder, RlPlan.from_json((folder.path / "given.json").read_text()), job, EngineOptions(variant="cpu"))
"""
"""Program that trains in a folder that holds the plan, as `python -c PARENT FOLDER POLICY TESTS`."""


def question(index: int) -> Task:
    """Return a sum."""
    left, right = SUMS[index]
    return Task(f"q{index}", f"{left}+{right}?", (), "sums", "math")


def rows(number: int = len(SUMS)) -> list[dict[str, Any]]:
    """Rows as the engine reads them."""
    return [
        {
            "question_key": question(index).key,
            "question": question(index).text,
            "choices": [],
            "answers": [str(sum(SUMS[index]))],
            "domain": "math",
            "dataset": "sums",
            "score_tool": 0.5,
            "score_corr": 0.5,
            "rank": 0,
            "environment": "default",
        }
        for index in range(number)
    ]


def _ways(index: int) -> list[list[tuple[str, bool]]]:
    """Ways to answer, as pieces: text, and whether the policy writes it."""
    left, right = SUMS[index]
    call = f"<think>a</think><python>print({left}+{right})</python>"
    result = f"<result>{left + right}</result>"
    answer = f"<think>b</think><answer>\\boxed{{{left + right}}}</answer>"
    guess = "<think>c</think><answer>\\boxed{1}</answer>"
    return [
        [(call, True), (result, False), (answer, True)],
        [(call, True), (result, False), (call, True), (result, False), (answer, True)],
        [(guess, True)],
        [(call, True), (result, False), ("<think>d", True)],
    ]


def write_policy(
    folder: Path, *, seed: int = 0, more: Iterable[tuple[Sequence[Mapping[str, str]], str]] = ()
) -> ChatTokenizer:
    """Return a policy that answers each question in one of four ways, of which two are right.

    `more` has further messages, each with an answer.
    """
    write_byte_tokenizer(folder)
    codec = ChatTokenizer.load(folder)
    end = min(codec.eos_ids)
    examples = [
        {
            "prompt_ids": codec.prompt_ids(ENVIRONMENT.first_messages(question(index))),
            "output_ids": [id_ for text, _ in way for id_ in codec.encode(text)] + [end],
        }
        for index in range(len(SUMS))
        for way in _ways(index)
    ]
    examples += [
        {"prompt_ids": codec.prompt_ids(messages), "output_ids": [*codec.encode(answer), end]}
        for messages, answer in more
    ]
    examples_path = folder.with_name(folder.name + ".examples.parquet")
    pq.write_table(pa.Table.from_pylist(examples), examples_path)
    subprocess.run(
        [str(python_of("trl", "cpu")), str(MAKER), str(folder), str(examples_path), str(seed)],
        env=engine_environ({"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}),
        cwd="/",
        check=True,
    )
    return codec


def make_plan(num_rows: int = len(SUMS), *, num_validation_rows: int = 0, **options: Any) -> RlPlan:
    """Return a plan over the sums: groups of four, two questions a step."""
    chosen = RlOptions.model_validate({**OPTIONS, **options})
    settings = RlSettings(options=chosen, environment=ENVIRONMENT, seed=1)
    return plan_phase(
        settings,
        address="1/rl@phase-1",
        rows_digest="0" * 64,
        rows={"default": num_rows},
        validation_rows={"default": num_validation_rows} if num_validation_rows else {},
        machine=Machine(variant="cpu"),
    )


def write_rows(path: Path, number: int = len(SUMS)) -> None:
    """Write the rows where a job reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows(number), TRAINING_SCHEMA), path)


def environments_json() -> dict[str, Any]:
    """Return the settings of the environments as a job has them."""
    return {"default": json.loads(ENVIRONMENT.model_dump_json())}


def interpreter() -> str:
    """Return the Python that runs the policy's programs."""
    return sys.executable
