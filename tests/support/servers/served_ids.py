"""A checkpoint on real vLLM or in another engine, compared with what was written at the end of its training."""

from __future__ import annotations

import json
import subprocess
import urllib.request

from treadle.core.engines.config import VllmServer
from treadle.core.engines.environments import engine_environ, python_of
from treadle.core.engines.serving import serve
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run

CLOSE_CALL = 0.15
"""Margin of log-probabilities within which two engines may choose differently: a logit of 16 to 32 has steps of 0.125
in the 16 bits in which transformers computes here."""
NUM_IDS = 16
_LOADER = """
import json, sys
from pathlib import Path
from treadle.core.engines.export_model import greedy_ids
job = json.loads(sys.argv[1])
print(json.dumps(greedy_ids(Path(job["folder"]), job["prompt"], job["num_tokens"])["ids"]))
"""


def check_served_ids(run: Run, trained: StageRecord, *, cutoff_tokens: int | None = None) -> None:
    """Serve the checkpoint of `1/sft` and fail unless it writes greedily what transformers wrote after the same prompt.

    The prompt is that of the first row of `1/sft_rows` within the cut-off. From the first id in which they differ on,
    which must be a close call, the two say different things.
    """
    folder = run.rows(trained.outputs["checkpoint"]).folder("model")
    with serve(VllmServer(model=str(folder), max_model_len=512, dtype="float32"), model_name="tuned") as served:
        ids = _greedy(served.url, _first_prompt(run, cutoff_tokens), NUM_IDS)
    _compare(ids, trained)


def check_loaded_ids(run: Run, trained: StageRecord, engine: str) -> None:
    """Load the checkpoint of `1/sft` with the transformers of another engine, and fail as `check_served_ids` does."""
    folder = run.rows(trained.outputs["checkpoint"]).folder("model")
    job = json.dumps({"folder": str(folder), "prompt": _first_prompt(run, None), "num_tokens": NUM_IDS})
    command = [str(python_of(engine, "cpu")), "-c", _LOADER, job]
    done = subprocess.run(command, env=engine_environ(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    _compare(json.loads(done.stdout.splitlines()[-1]), trained)


def _compare(ids: list[int], trained: StageRecord) -> None:
    expected = trained.metrics["greedy_ids"]
    assert len(expected) == len(ids) == NUM_IDS
    same = next((place for place, pair in enumerate(zip(ids, expected, strict=True)) if pair[0] != pair[1]), None)
    assert same is None or trained.metrics["greedy_margins"][same] < CLOSE_CALL, (ids, expected)


def _first_prompt(run: Run, cutoff_tokens: int | None) -> list[int]:
    made = run.record(Address.parse("1/sft_rows"))
    assert made is not None
    rows = run.rows(made.outputs["sft_rows"]).rows(["input_ids", "num_prompt_tokens", "num_tokens"])
    row = next(row for row in rows if cutoff_tokens is None or row["num_tokens"] <= cutoff_tokens)
    prompt: list[int] = row["input_ids"][: row["num_prompt_tokens"]]
    return prompt


def _greedy(url: str, prompt: list[int], num_tokens: int) -> list[int]:
    body = {
        "model": "tuned",
        "prompt": prompt,
        "max_tokens": num_tokens,
        "temperature": 0.0,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        ids: list[int] = json.load(reply)["choices"][0]["token_ids"]
    return ids
