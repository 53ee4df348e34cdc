"""Fine-tune and reinforce SmolLM2 on dialogues of an environment of one's own, and compare teacher, student and policy.

    python -m benchmarks.training.dialogue [--folder FOLDER]

Needs the engines `serve`, `sft` and `trl` (`treadle env install`). The environment is that of
docs/guides/environments.md, the settings are in benchmarks/training/dialogue.toml. The teacher halves the range.
Running it again resumes the run; `treadle report` and `treadle view` show it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.rollouts.guess_desk import guide_code, halving
from support.servers.scripted_server import served

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.serving import embedded_folder

CONFIG = Path(__file__).with_suffix(".toml")
TREADLE = Path(sys.executable).with_name("treadle")
TOP = 30


def main() -> int:
    """Write the run's files, serve the teacher and run Treadle; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("outputs/dialogue"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "my_envs.py").write_text(guide_code())
    tasks = [json.dumps({"question": "Guess my number.", "secret": number}) for number in range(1, TOP + 1)]
    (folder / "tasks.jsonl").write_text("\n".join(tasks) + "\n")
    tokenizer = ChatTokenizer.load(embedded_folder("tokenizer"))
    with served(halving(tokenizer, TOP), codec=tokenizer) as server:
        text = CONFIG.read_text().replace("TOKENIZER", str(tokenizer.folder)).replace("URL", server.url)
        (folder / "dialogue.toml").write_text(text)
        return subprocess.run([TREADLE, "run", "dialogue.toml", "--run", "dialogue"], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
