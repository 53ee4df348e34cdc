"""A desk whose run mixes two kinds of tasks: questions that search a corpus, and the guide's game of guessing."""

from __future__ import annotations

from pathlib import Path

from support.qwen_tokenizer import qwen_tokenizer
from support.rollouts.guess_desk import desk_of_the_guide, guess
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply

CONFIG = """
[models.base]
model = "scripted"
endpoints = [{{ url = "{url}" }}]
tokenizer = "{tokenizer}"

[questions]
sources = [
    {{ path = "sums.jsonl", dataset = "sums", domain = "math" }},
    {{ path = "tasks.jsonl", dataset = "guess", payload = ["secret"], environment = "guess" }},
]

[environment]
python.enabled = false
search = {{ corpus = ["corpus.jsonl"], cache_folder = "cache" }}

[environments.guess]
type = "my_envs.py:Guess"
top = 64
max_turns = 8

[scores]
symbolic = false

[flow]
stages = ["rollouts", "scores", "sft_rows", "report"]
"""
GAME = "I think of a number"
"""Beginning of the first message of a game; no question has it."""
_SEARCH = "<think>t</think><search>moss</search>"
_ANSWER = "<think>t</think><answer>\\boxed{1}</answer>"


def is_check(request: RecordedRequest) -> bool:
    """Return whether a request is none of a rollout."""
    return GAME not in request.text and "How many" not in request.text


def play_both(request: RecordedRequest) -> Reply | str:
    """Guess by halving in a game; search once and answer 1 to a question."""
    if GAME in request.text:
        return guess(request)
    return _ANSWER if "<result>" in request.text.rpartition("How many")[2] else _SEARCH


def mixture_desk(folder: Path, url: str, *, num_tasks: int = 3) -> Desk:
    """Write the files of a run `mixed.toml` with as many tasks of each kind; the answer of every other sum is 1."""
    desk = desk_of_the_guide(folder, url)
    (folder / "mixed.toml").write_text(CONFIG.format(url=url, tokenizer=qwen_tokenizer()))
    sums = [{"question": f"How many are {n} - {n - 1}?", "answer": str(1 + n % 2)} for n in range(1, num_tasks + 1)]
    desk.write("sums.jsonl", *sums)
    desk.write("tasks.jsonl", *({"question": "Guess my number.", "secret": n} for n in range(1, num_tasks + 1)))
    desk.write("corpus.jsonl", {"id": "1", "contents": "Moss\nMoss grows on stones."})
    return desk
