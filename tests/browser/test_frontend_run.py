"""A run of colbench/frontend with scripted models and a real Chromium: pictures, hidden targets, and the viewer."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, served
from support.tables.viewer_run import client

from treadle.core.runs.run import Run
from treadle.environments.planning.tools.pictures import PICTURES, noted_picture, read_picture

CANARY = "canary_of_the_target"
NUM_TASKS = 3
CONFIG = """
flow.stages = ["rollouts"]
flow.models = ["base"]

[models.base]
model = "scripted"
api = "chat"
endpoints = [{{ url = "{url}" }}]

[models.human]
model = "scripted"
api = "chat"
endpoints = [{{ url = "{url}" }}]

[environment]
type = "colbench/frontend"

[rollouts]
samples_per_question = 2
"""


def page(color: str) -> str:
    script = "<script src='https://cdn.tailwindcss.com'></script>"
    return f"<html><head>{script}</head><body class='bg-{color}-500'><h1 class='text-4xl'>Bread</h1></body></html>"


def is_of_person(request: RecordedRequest) -> bool:
    return "Play a person" in json.dumps(request.body)


def play(request: RecordedRequest) -> str:
    """Show a blue page, then the red one that the person asks for."""
    if is_of_person(request):
        return "The background must be red."
    if "must be red" in request.text:
        return f"OUTPUT: I WANT TO ANSWER: {page('red')}"
    return f"Blue, I think. OUTPUT: {page('blue')}"


def test_rollouts_store_pictures_and_hide_the_target(tmp_path: Path) -> None:
    target = page("red").replace("</body>", f"<!-- {CANARY} --></body>")
    tasks = [{"problem_description": f"A page for bakery {n}.", "ground_truth": target} for n in range(NUM_TASKS)]
    with served(play, chat_only=True) as server:
        desk = Desk(tmp_path)
        (tmp_path / "run.toml").write_text(CONFIG.format(url=server.url))
        desk.write("train.jsonl", *tasks)
        desk.treadle("import", "colbench", "tasks", "train.jsonl", "--out", "tasks", "--frontend").succeeded()
        done = desk.treadle("run", "run.toml", "tasks/questions.toml", "--run", "pages").succeeded()
    asked = [one for one in server.requests if "bakery" in one.text or is_of_person(one)]
    assert CANARY not in done.out + done.err
    assert not any(CANARY in json.dumps(one.body) for one in asked), "the person sees a picture, never the text"
    of_person = [one for one in asked if is_of_person(one)]
    assert {json.dumps(one.body).count("data:image/png;base64,") for one in of_person} == {2}
    rows = desk.rows("pages", "1/rollouts@base", "rollouts")
    assert [(row["status"], row["num_turns"]) for row in rows] == [("answered", 2)] * 2 * NUM_TASKS
    run = Run.open(desk.folder / "outputs", "pages")
    store = run.store(PICTURES)
    digests = {(call["tool"], call["turn"]): noted_picture(call["note"]) for call in json.loads(rows[0]["tool_calls"])}
    assert digests["page", 1] == digests["target", 0] != digests["page", 0], "equal pages have equal pictures"
    for digest in digests.values():
        picture = read_picture(store.get(digest) or b"")
        assert (picture.width, picture.height) == (1280, 800)
    assert len(list(store.keys())) == 2
    holding = set()
    for path in desk.folder.rglob("*.parquet"):
        table = pq.read_table(path, use_threads=False)
        holding |= {name for name in table.column_names if CANARY in repr(table[name].to_pylist())}
    assert holding == {"payload"}
    viewer, place = client(run), f"1/rollouts@base/{rows[0]['rollout_key']}"
    assert viewer.get(f"/hidden/{place}").text.count(f"/picture/{digests['target', 0]}") == 3
    assert viewer.get(f"/picture/{digests['page', 0]}").headers["content-type"] == "image/png"
    assert CANARY not in viewer.get(f"/trajectory/{place}").text
