"""Run the work with Treadle: its stage `rollouts` with journal and artifact, through `execute()`, with stub tools.

Resume: the same call again, as `treadle run` does it. It runs in Treadle's own environment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import work

from treadle.core.config import load_config
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.datagen.questions.tables import QUESTIONS
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.rollouts.settings import RolloutOptions, RolloutsSettings
from treadle.environments.rollouts.stage import ROLLOUTS_STAGE

_QUESTIONS, _ROLLOUTS = Address(1, "questions"), Address(1, "rollouts")


def questions_stage(kind: str, num_items: int) -> Stage:
    """Return a stage that writes the questions."""

    def write(context: StageContext) -> dict[str, Any]:
        fixed = {"dataset": "stub", "domain": "math", "choices": [], "split": "heldout", "source_file": "f"}
        rows = [
            {
                "question_key": f"{item:016x}",
                "question": work.prompt(kind, item),
                "answers": ["2300"],
                "source_row": item + 1,
                "meta": "{}",
                "format": None,
                "scorer": None,
                "search": None,
                "environment": "default",
                "payload": "{}",
                **fixed,
            }
            for item in range(num_items)
        ]
        context.write("questions", rows)
        return {}

    return Stage(name="questions", version=1, settings=RolloutOptions, produces=(QUESTIONS,), run=write)


def settings_of(kind: str, url: str, in_flight: int, folder: Path) -> RolloutsSettings:
    """Return the settings of the stage."""
    tool = {"enabled": kind == work.TOOLS}
    data = {
        "model_name": "base",
        "model": {
            "model": work.MODEL,
            "tokenizer": str(write_byte_tokenizer(folder / "tokenizer")),
            "endpoints": [{"url": url}],
            "max_in_flight": in_flight,
        },
        "environment": {"python": tool, "search": tool},
        "options": {"max_concurrent": in_flight},
    }
    return load_config(RolloutsSettings, data=data)


def main() -> None:
    """Make the rollouts, or resume them."""
    kind, url, num_items, in_flight, folder, resume = work.arguments()
    if kind == work.TOOLS:
        sys.path.append(str(Path(__file__).parents[2]))
        from benchmarks.parts import stub_tools

        stub_tools.replace_tools(work.TOOL_RESULT)
    run = Run.open(folder, "r") if resume else Run.create(folder, "r", {}, {})
    given = questions_stage(kind, num_items)
    execute(Instance(address=_QUESTIONS, stage=given, settings=RolloutOptions()), run)
    settings = settings_of(kind, url, in_flight, folder)
    made = Instance(address=_ROLLOUTS, stage=ROLLOUTS_STAGE, settings=settings, inputs={"questions": (_QUESTIONS,)})
    record = execute(made, run)
    assert record.metrics["status_answered"] == num_items, record.metrics
    table = run.rows(record.outputs["rollouts"])
    work.report([int(row["question_key"], 16) for row in table.rows(["question_key"])])


if __name__ == "__main__":
    main()
