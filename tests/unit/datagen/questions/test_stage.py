"""The stage `questions`: its sources, when it fails, splits, duplicates, and questions of benchmarks."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.tables.questions_bench import GOOD, Bench, Result, write_jsonl

from treadle.cli.warnings import show_warnings
from treadle.core.config import semantic_dump, validate
from treadle.core.errors import ConfigError, DataError, StageFailed
from treadle.core.runs.execute import execute, planned_action
from treadle.datagen.questions.source_rows import with_digests
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_json_arrays_parquet_and_dataset_folders_give_the_same_questions(bench: Bench) -> None:
    rows = [{"question": f"Which river flows through {town}?", "answer": ["Ilme"]} for town in ("Vorna", "Tesk")]
    (bench.folder / "a.json").write_bytes(orjson.dumps(rows))
    write_jsonl(bench.folder / "lines.json", rows)
    pq.write_table(pa.Table.from_pylist(rows), bench.folder / "a.parquet")
    folder = bench.folder / "folder"
    write_jsonl(folder / "train.jsonl", rows)
    keys = [
        [row["question_key"] for row in bench.take({"path": bench.folder / name, "domain": "qa"}).questions]
        for name in ("a.json", "lines.json", "a.parquet", "folder")
    ]
    assert len(keys[0]) == 2
    assert keys == [keys[0]] * 4


@pytest.mark.covers("flywheel-32")
@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("none.jsonl", None, "none.jsonl does not exist; correct its path"),
        ("empty.jsonl", b"", "empty.jsonl has no rows; use another file"),
        ("blank.jsonl", b"\n \n", "blank.jsonl has no rows"),
        ("empty.json", b"[]", "empty.json has no rows"),
        ("broken.json", b'[{"question": ', "broken.json is not valid JSON"),
        ("latin.json", b'[{"question": "\xe9"}]', "latin.json is not UTF-8 at byte 16"),
        ("broken.parquet", b"PAR1 and nothing else", "broken.parquet is not a readable parquet file"),
        ("a.txt", b"{}", "a.txt: its format cannot be inferred from '.txt'"),
    ],
)
def test_unreadable_file_is_named_with_a_remedy(bench: Bench, name: str, content: bytes | None, match: str) -> None:
    if content is not None:
        (bench.folder / name).write_bytes(content)
    with pytest.raises(DataError, match=match):
        bench.take({"path": bench.folder / name, "dataset": "d", "domain": "qa"})


def test_source_without_a_usable_row_fails_the_stage_and_names_the_first(bench: Bench) -> None:
    write_jsonl(bench.folder / "good.jsonl", [GOOD])
    write_jsonl(bench.folder / "bad.jsonl", [{"ask": "Why?", "answer": "x"}, {"ask": "How?"}])
    sources = [{"path": bench.folder / f"{name}.jsonl", "domain": "qa"} for name in ("good", "bad")]
    with pytest.raises(
        StageFailed, match=r"no row of bad.jsonl can be used: 2 rows, 2 unusable .*first: row 1: .*'ask'"
    ):
        bench.take(*sources)


def test_too_many_unusable_rows_fail_the_stage_unless_accepted(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "q.jsonl", [GOOD, {"question": "Why?"}, b"{"])
    instance = bench.instance({"path": path, "domain": "qa"}, max_error_rate=0.5)
    with pytest.raises(StageFailed, match=r"2 of 3 question rows are unusable.*q.jsonl.*first: row 2"):
        execute(instance, bench.run)
    execute(instance, bench.run, accept_failures=True)
    assert Result(bench.run).reasons == [(2, "missing_field"), (3, "bad_json")]


def test_missing_sources_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"add a source under questions.sources"):
        with_digests(QuestionsSettings())


@pytest.mark.parametrize(
    ("tree", "match"),
    [
        ({"sources": [{}]}, "give either path or hub"),
        ({"sources": [{"path": "a.jsonl", "hub": "o/n"}]}, "give either path or hub"),
        (
            {"sources": [{"path": "x/mine.jsonl"}]},
            "domain of data set 'mine' is not known; set domain.*, or environment if",
        ),
        ({"sources": [{"hub": "o/n", "from": "environment"}]}, 'give either path or hub, or from = "environment"'),
        ({"sources": [{"from": "elsewhere"}]}, "'questions.sources.0.from'|'sources.0.from': Input should be"),
        ({"sources": [{"from": "environment", "question_field": "q"}]}, "have fixed fields; remove question_field"),
        ({"sources": [{"from": "environment", "payload": ["x"]}]}, "have fixed fields; remove payload"),
        (
            {"sources": [{"path": "a.jsonl", "answer_field": "a", "payload": ["a"]}]},
            "field 'a' is hidden by payload, so it cannot be answer_field too",
        ),
        (
            {"decontaminate": [{"path": "a.jsonl", "payload": ["a"]}]},
            "benchmarks are compared by their questions; remove payload",
        ),
        (
            {"decontaminate": [{"path": "a.jsonl", "environment": "guess"}]},
            "benchmarks are compared by their questions; remove payload, from and environment",
        ),
        ({"sources": [{"path": "gsm8k.jsonl", "anwser_field": "a"}]}, "did you mean 'answer_field'"),
    ],
)
def test_invalid_source_is_refused_before_reading(tree: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        with_digests(validate(QuestionsSettings, tree))


def test_edited_file_is_read_again_and_a_moved_one_is_not(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "a" / "q.jsonl", [GOOD])
    source = {"path": path, "domain": "qa"}
    bench.take(source)
    moved = {**source, "path": write_jsonl(bench.folder / "b" / "q.jsonl", [GOOD])}
    assert planned_action(bench.instance(moved), bench.run) == "reuse"
    write_jsonl(path, [{**GOOD, "answer": "Orre"}])
    assert planned_action(bench.instance(source), bench.run) == "run"
    assert bench.take(source).questions[0]["answers"] == ["Orre"]


def test_file_edited_after_its_digest_was_computed_is_refused(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "q.jsonl", [GOOD])
    instance = bench.instance({"path": path, "domain": "qa"})
    write_jsonl(path, [GOOD, GOOD])
    with pytest.raises(DataError, match="changed while the run was starting"):
        execute(instance, bench.run)


def test_sources_are_distinguished_by_their_folders(tmp_path: Path) -> None:
    paths = [write_jsonl(tmp_path / name / "test.jsonl", [GOOD]) for name in ("nq", "gsm8k")]
    paths.append(write_jsonl(tmp_path / "own.jsonl", [GOOD]))
    given = QuestionsSettings(
        sources=tuple(SourceSettings(path=path, dataset="nq") for path in paths),
        decontaminate=(SourceSettings(path=paths[0], dataset="nq"),),
    )
    settings = with_digests(given)
    names = [source.name for source in (*settings.sources, *settings.decontaminate)]
    assert names == ["nq/test.jsonl", "gsm8k/test.jsonl", "own.jsonl", "nq/test.jsonl#2"]
    assert str(tmp_path) not in json.dumps(semantic_dump(settings))


def test_limit_reads_only_the_first_rows(bench: Bench) -> None:
    result = bench.take_rows([GOOD, {"question": "Why?", "answer": "x"}, b"{"], limit=2)
    assert (result.metrics["rows_read"], result.metrics["quarantined"]) == (2, 0)


def test_split_comes_from_the_source_then_the_row_then_the_share(bench: Bench) -> None:
    rows = [{"question": f"Item {number}?", "answer": "x", "s": s} for number, s in enumerate(["train", "test", None])]
    assert [row["split"] for row in bench.take_rows(rows, split_field="s").questions] == ["train", "heldout", "train"]
    assert {row["split"] for row in bench.take_rows(rows, split="heldout").questions} == {"heldout"}


def test_unconfigured_split_column_is_reported_once(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"Item {n}?", "answer": "x", "Split": s} for n, s in enumerate(["train", "test", "dev"])]
    handler = show_warnings()
    try:
        bench.take_rows(rows)
        (line,) = capsys.readouterr().err.splitlines()
        for settings in ({"split_field": "Split"}, {"split": "train"}):
            bench.take_rows(rows, **settings)
        bench.take_rows(rows[:1])
        assert not capsys.readouterr().err
    finally:
        logging.getLogger("treadle").removeHandler(handler)
    assert line == (
        "warning: questions of q.jsonl: the column 'Split' is ignored, so all are training questions (row 2: 'test'); "
        "set split_field = 'Split', or split = \"train\" if that is intended"
    )


def test_held_out_share_depends_only_on_content(bench: Bench) -> None:
    rows = [{"question": f"Item {number}?", "answer": str(number)} for number in range(400)]
    path = write_jsonl(bench.folder / "q.jsonl", rows)
    back = write_jsonl(bench.folder / "back.jsonl", rows[::-1])
    held = [
        {
            row["question"]
            for row in bench.take({"path": p, "domain": "qa"}, heldout_share=0.25).questions
            if row["split"] == "heldout"
        }
        for p in (path, back)
    ]
    assert held[0] == held[1]
    assert 60 <= len(held[0]) <= 140


def test_duplicates_are_counted_and_name_their_original(bench: Bench) -> None:
    long = " ".join(f"The keeper of the tower wrote down how many boats passed {n} miles off." for n in range(9))
    rows = [
        {"question": long, "answer": "9"},
        {"question": long.upper(), "answer": "9"},
        {"question": long, "answer": "10"},
        {"question": "Please answer: " + long, "answer": "9"},
    ]
    result = bench.take_rows(rows)
    key = result.questions[0]["question_key"]
    assert result.reasons == [(2, "exact_duplicate"), (3, "exact_duplicate"), (4, "near_duplicate")]
    assert [row["detail"] for row in result.quarantine[:2]] == [
        f"repeats question {key}",
        f"repeats question {key}, but with other answers",
    ]
    assert (result.metrics["reason.exact_duplicate"], result.metrics["reason.near_duplicate"]) == (2, 1)


def test_held_out_rows_are_duplicates_only_with_the_same_answers(bench: Bench) -> None:
    rows = [
        {"question": "Simplify $X^2$.", "answer": "a", "s": "test"},
        {"question": "Simplify $x^2$.", "answer": "b", "s": "test"},
        {"question": "simplify $X^2$.", "answer": "B", "s": "test"},
        {"question": "Simplify $x^2$.", "answer": "c", "s": "train"},
        {"question": "Who is tall, Ann or Bo?", "answer": ["Ann", "Bo"], "s": "test"},
        {"question": "Who is tall; Ann or Bo?", "answer": ["Bo", "Cy"], "s": "test"},
        {"question": "Who is tall: Ann or Bo?", "answer": ["Cy", "Bo"], "s": "test"},
    ]
    result = bench.take_rows(rows, split_field="s")
    assert result.reasons == [(3, "exact_duplicate"), (4, "exact_duplicate"), (7, "near_duplicate")]
    assert [row["answers"][0] for row in result.questions] == ["a", "b", "Ann", "Bo"]
    keys = [row["question_key"] for row in result.questions]
    assert [row["detail"].split()[2].strip(",") for row in result.quarantine] == [keys[1], keys[0], keys[3]]


def test_contaminated_training_questions_are_removed_and_held_out_ones_stay(bench: Bench) -> None:
    benchmark = write_jsonl(bench.folder / "bench.jsonl", [{"other": 1}, {"question": "Who built the Vorna bridge?"}])
    rows = [
        {"question": "who built the  Vorna bridge", "answer": "Ann", "s": "train"},
        {"question": "Who built the Vorna bridge? ", "answer": "Ann", "s": "test"},
        {"question": "Who built the Tesk bridge?", "answer": "Ben", "s": "train"},
    ]
    path = write_jsonl(bench.folder / "q.jsonl", rows)
    result = bench.take(
        {"path": path, "domain": "qa", "split_field": "s"}, decontaminate=[{"path": benchmark, "dataset": "bench"}]
    )
    assert result.reasons == [(1, "contaminated")]
    assert result.quarantine[0]["detail"] == "question of benchmark bench.jsonl row 2: equals it"
    assert result.metrics["benchmark_rows_skipped"] == 1
    assert [row["source_row"] for row in result.questions] == [2, 3]


def test_benchmark_without_questions_is_refused(bench: Bench) -> None:
    benchmark = write_jsonl(bench.folder / "bench.jsonl", [{"text": "Why?"}])
    path = write_jsonl(bench.folder / "q.jsonl", [GOOD])
    with pytest.raises(DataError, match=r"benchmark bench.jsonl has no row with a question; set question_field"):
        bench.take({"path": path, "domain": "qa"}, decontaminate=[{"path": benchmark}])


def test_unreachable_hub_dataset_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    settings = QuestionsSettings(sources=(SourceSettings(hub="org/none", domain="qa"),))
    with pytest.raises(DataError, match="hub data set org/none cannot be looked up .*or set revision"):
        with_digests(settings)


def test_search_route_comes_from_the_map_then_the_source_then_the_benchmark(bench: Bench) -> None:
    rows = [{**GOOD, "question": f"Where is {name}?", "source": name} for name in ("2wiki", "gaia", "ours", "theirs")]
    path = write_jsonl(bench.folder / "q.jsonl", rows)
    source = {"path": path, "domain": "qa", "source_field": "source"}

    def found(**settings: object) -> list[str | None]:
        taken = bench.take({**source, **settings.pop("source", {})}, **settings)  # type: ignore[dict-item]
        return [row["search"] for row in taken.questions]

    assert found() == ["local", "web", None, None]
    assert found(source={"search": "both"}) == ["both"] * 4
    assert found(source={"search": "both"}, search={"2wiki": "web", "theirs": "local"}) == [
        "web",
        "both",
        "both",
        "local",
    ]


def test_search_map_names_ignore_case_and_unmatched_ones_are_reported(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{**GOOD, "question": f"Where is {name}?", "source": name} for name in ("2Wiki", "ours")]
    path = write_jsonl(bench.folder / "q.jsonl", rows)
    source = {"path": path, "domain": "qa", "source_field": "source"}
    taken = bench.take(source, search={"2WIKI": "both", "World-Lookup": "local", "nosuch": "web"})
    assert [row["search"] for row in taken.questions] == ["both", None]
    (told,) = [record.message for record in caplog.records if "questions.search" in record.message]
    assert "no question is from 'World-Lookup', 'nosuch'; data sets: '2Wiki', 'ours'" in told
    caplog.clear()
    bench.take(source, search={"2WIKI": "both"})
    assert "questions.search" not in caplog.text
    with pytest.raises(ValueError, match="'gaia' is listed twice; case is ignored"):
        QuestionsSettings(search={"gaia": "web", "GAIA": "both"})
