"""The guide's environment on a desk: its files, and a scripted model that guesses by halving."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from support.docs_pages import FILE, ROOT, blocks
from support.qwen_tokenizer import qwen_tokenizer
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply

from treadle.core.chat import ChatTokenizer

GUIDE = ROOT / "docs/guides/environments.md"
TOKENIZER = ChatTokenizer.load(qwen_tokenizer())


def halving(tokenizer: ChatTokenizer, top: int) -> Callable[[RecordedRequest], Reply]:
    """Return a player that halves the range that the dialogue leaves; the text alone decides."""

    def play(request: RecordedRequest) -> Reply:
        low, high = 1, top
        for number, reply in re.findall(r"I say (\d+)\D+?(Higher|Lower)\.", request.text):
            low, high = (int(number) + 1, high) if reply == "Higher" else (low, int(number) - 1)
        said = f"I say {(low + high) // 2}"
        return Reply(said, (*tokenizer.encode(said), tokenizer.turn_end_ids[0]))

    return play


def guide_code() -> str:
    """Return `my_envs.py` of the guide."""
    (code,) = [block.text for block in blocks(GUIDE) if block.remark == f"{FILE}my_envs.py"]
    return code


guess = halving(TOKENIZER, 64)


def desk_of_the_guide(folder: Path, url: str, *, num_tasks: int = 3) -> Desk:
    """Write the files of the guide, with this server in place of the one that it names."""
    folder.mkdir(exist_ok=True)
    desk = Desk(folder)
    for block in blocks(GUIDE):
        if block.remark.startswith(FILE):
            (folder / block.remark.removeprefix(FILE)).write_text(block.text)
    config = (folder / "guess.toml").read_text().replace("http://127.0.0.1:8000/v1", url)
    config = config.replace("[questions]", f'tokenizer = "{qwen_tokenizer()}"\n\n[questions]').replace(
        "your-model", "scripted"
    )
    (folder / "guess.toml").write_text(config)
    if num_tasks > 3:
        rows = [{"question": "Guess my number.", "secret": number} for number in range(1, num_tasks + 1)]
        desk.write("tasks.jsonl", *rows)
    return desk
