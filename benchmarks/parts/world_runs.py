"""Make whole runs, each over a sample world of its own, for training benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from treadle.core.runs.run import Run
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.demo.world_files import write_world

TREADLE = Path(sys.executable).with_name("treadle")
NUM_QUESTIONS = 600
NUM_HELDOUT = 150


def run_seed(
    configs: Sequence[Path], folder: Path, seed: int, *, tiers: Sequence[int] = (0,), changes: Sequence[str] = ()
) -> Run:
    """Return the finished run of one seed over its own world in `folder`; resume it if it exists.

    `changes` are KEY=VALUE as for `treadle run`, whose output goes to standard error. Raise CalledProcessError if it
    fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    world = write_world(
        folder / "world",
        documents=NUM_QUESTIONS * 10,
        questions=NUM_QUESTIONS,
        heldout_questions=NUM_HELDOUT,
        tiers=tuple(tiers),
        seed=seed,
    )
    tokenizer = embedded_tokenizer(lambda line: print(line, file=sys.stderr))
    places = folder / "places.toml"
    places.write_text(
        f"seed = {seed}\n[models.tutor.server]\ntokenizer = {json.dumps(str(tokenizer))}\n"
        f"[[questions.sources]]\npath = {json.dumps(str(world.questions))}\n"
        f'source_field = "source"\nsplit_field = "split"\n'
        f"[environment.search]\ncorpus = [{json.dumps(str(world.corpus))}]\n"
    )
    command = [str(TREADLE), "run", *map(str, configs), str(places), "--run", "line", "--root", str(folder / "root")]
    for change in changes:
        command += ["--set", change]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return Run.open(folder / "root", "line")
