"""A text in the payload is in the questions of a run and nowhere else: no table, journal, log, export or command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.rollouts.guess_desk import TOKENIZER, desk_of_the_guide, guess
from support.runs.command_line import Desk, Done, tutor
from support.servers.scripted_server import served
from support.tables.table_readers import assert_all_read, says_the_same
from support.tables.viewer_run import client

from treadle.api import open_run
from treadle.core.runs.run import Run
from treadle.core.tables import TABLES
from treadle.demo.world_files import write_world
from treadle.tasks.exchange.dataset_export import export_dataset

CANARY = "canary-5e0b77"
PAYLOAD = {"secret": CANARY, "tests": [{"input": CANARY, "weight": 0.5}]}
NUM_TASKS = 3
CONFIG = """
[flow]
stages = ["pools", "sft_rows", "rollouts", "scores", "report"]

[models.tutor]
model = "treadle-tutor"
endpoints = [{{ url = "{url}" }}]

[questions]
sources = [{{ path = "tasks.jsonl", dataset = "world", domain = "qa", payload = ["hidden"] }}]
max_error_rate = 0.5

[environment]
python.enabled = false
search.corpus = ["world/corpus.jsonl"]

[pools]
rounds = 1
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Done]]:
    """Yield a finished run `r` of tasks with a canary in their payload, three of them unusable, and how it ended."""
    with tutor() as url:
        desk = Desk(tmp_path_factory.mktemp("desk"))
        world = write_world(desk.folder / "world", documents=200, tiers=(0, 1))
        known = [json.loads(line) for line in Path(world.questions).read_text().splitlines()]
        asked = [row for row in known if row["source"] == "world-lookup"][:NUM_TASKS]
        rows = [{"question": row["question"], "answer": row["answer"], "hidden": PAYLOAD} for row in asked]
        bad = {"question": "", "answer": "1", "hidden": PAYLOAD}
        desk.write("tasks.jsonl", *rows, rows[0], bad, b'{"question": "Why?", "hidden": "' + CANARY.encode())
        (desk.folder / "run.toml").write_text(CONFIG.format(url=url))
        yield desk, desk.treadle("run", "run.toml", "--run", "r").succeeded()


def holders(folder: Path) -> set[str]:
    """Files below that hold the canary; columns of parquet by their names."""
    found = set()
    for path in (path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".parquet":
            table = pq.ParquetFile(path).read()
            found |= {f"{name}:{column}" for column in table.column_names if CANARY in repr(table[column].to_pylist())}
        elif CANARY.encode() in path.read_bytes():
            found.add(name)
    return found


def test_payload_is_in_no_artifact_but_questions(ran: tuple[Desk, Done]) -> None:
    desk, done = ran
    assert CANARY not in done.out + done.err
    assert len(desk.rows("r", "1/sft_rows", "sft_rows")) and len(desk.rows("r", "1/scores@tutor", "scores"))
    assert [row["reason"] for row in desk.rows("r", "1/questions", "quarantine")] == [
        "exact_duplicate", "empty_question", "bad_json",
    ]  # fmt: skip
    (first, *_) = desk.rows("r", "1/questions", "questions")
    assert json.loads(first["payload"]) == {"hidden": PAYLOAD}
    held = holders(desk.folder) - {"tasks.jsonl"}
    digest = json.loads((desk.folder / "outputs/runs/r/records/1/questions.json").read_text())["outputs"]["questions"]
    assert held == {f"outputs/artifacts/questions/{digest['digest']}/data/part-00000.parquet:payload"}


def test_no_command_shows_the_payload(ran: tuple[Desk, Done]) -> None:
    desk, _ = ran
    question = desk.rows("r", "1/questions", "questions")[0]["question_key"]
    rollout = desk.rows("r", "1/rollouts@tutor", "rollouts")[0]["rollout_key"]
    for arguments in (
        ("lineage", question, "--run", "r", "--json"),
        ("lineage", rollout, "--run", "r", "--json"),
        ("show", rollout, "--run", "r", "--json"),
        ("status", "--run", "r", "--json"),
        ("run", "--run", "r", "--dry-run", "--json"),
    ):
        told = desk.treadle(*arguments).succeeded()
        assert CANARY not in told.out + told.err, arguments


def test_exports_leave_the_payload_out(ran: tuple[Desk, Done]) -> None:
    desk, _ = ran
    told = desk.treadle("export", "dataset", "questions", "--run", "r", "--out", "out/q", "--json").succeeded().json()
    assert told["left_out"] == ["payload"] and told["num_rows"] == NUM_TASKS
    (part,) = (desk.folder / "out/q").glob("data/*.parquet")
    table = pq.read_table(part)
    assert table.num_rows == NUM_TASKS and "payload" not in table.column_names and "meta" in table.column_names
    assert "hidden from models are not in this copy: `payload`" in (desk.folder / "out/q/README.md").read_text()
    for kind in ("quarantine", "rollouts", "pools", "sft_rows"):
        desk.treadle("export", "dataset", kind, "--run", "r", "--out", f"out/{kind}").succeeded()
    desk.treadle("export", "sft_rows", "--run", "r", "--format", "sharegpt", "--out", "out/share").succeeded()
    desk.treadle("report", "--run", "r", "--out", "out/report.html").succeeded()
    assert holders(desk.folder / "out") == set()


def test_every_library_reads_every_export(ran: tuple[Desk, Done], tmp_path: Path) -> None:
    desk, _ = ran
    results = open_run("r", desk.folder / "outputs")
    walked = set()
    for record in results.run.records():
        for kind, ref in record.outputs.items():
            out, parsed = tmp_path / f"{kind} of {record.stage}", TABLES[kind].parsed
            export_dataset(results.run, record, kind, out)
            rows = results.table(kind).to_arrow().drop_columns(["instance"]).to_pylist()
            assert_all_read(out, rows, tmp_path / "cache")
            for row, stored in zip(rows, results.run.rows(ref).rows(TABLES[kind].visible), strict=True):
                for name in stored:
                    is_json = name in parsed and stored[name] is not None
                    assert says_the_same(row[name], json.loads(stored[name]) if is_json else stored[name]), name
            walked.add(kind)
    assert walked >= {
        "questions",
        "pools",
        "pool_questions",
        "pool_events",
        "sft_rows",
        "rollouts",
        "scores",
        "summary",
    }


SECRETS = [{"question": "Guess my number.", "secret": 50 + number, "note": CANARY} for number in range(3)]


def test_nothing_that_shows_a_dialogue_shows_its_payload(tmp_path: Path) -> None:
    """The environment reads it; pages of the viewer, `show`, report and lineage do not have it."""
    with served(guess, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        desk.write("tasks.jsonl", *SECRETS)
        config = (desk.folder / "guess.toml").read_text().replace('["secret"]', '["secret", "note"]')
        (desk.folder / "guess.toml").write_text(config)
        told = [desk.treadle("run", "guess.toml", "--run", "guess").succeeded()]
        assert not any(CANARY in request.text for request in server.requests)
    rows = desk.rows("guess", "1/rollouts@base", "rollouts")
    question, rollout = rows[0]["question_key"], rows[0]["rollout_key"]
    assert {row["status"] for row in rows} == {"finished"}
    for key in (question, rollout):
        told += [desk.treadle("lineage", key, "--run", "guess", *form).succeeded() for form in ((), ("--json",))]
    told += [desk.treadle("show", rollout, "--run", "guess", *form).succeeded() for form in ((), ("--json",))]
    assert "my_envs.py:Guess" in told[-2].out and "partner" in told[-2].out
    assert not any(CANARY in done.out + done.err for done in told)
    desk.treadle("report", "--run", "guess", "--out", "out/report.html").succeeded()
    assert "by environment" in (desk.folder / "out/report.html").read_text()
    assert holders(desk.folder / "out") == set()
    viewer = client(Run.open(desk.folder / "outputs", "guess"))
    place = f"1/rollouts@base/{rollout}"
    for path in ("/", f"/trajectory/{place}", f"/lineage/{place}", f"/json/{place}", f"/text/{place}?place=0"):
        answer = viewer.get(path)
        assert answer.status_code == 200 and CANARY not in answer.text, path
    assert "I think of a number" in viewer.get(f"/trajectory/{place}").text
    assert "No trajectory matches" in viewer.get("/", params={"q": CANARY}).text
