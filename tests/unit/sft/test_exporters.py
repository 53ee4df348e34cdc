"""Exports of fine-tuning rows: read back by the readers that they are made for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.tables.sft_tables import TEXT_MODE, as_messages, contents, run_with_rows, sft_row, table_of
from support.tables.table_readers import assert_all_read
from support.tool_templates import load_tool_tokenizer

from treadle.cli.commands.export_rows import ROW_FORMATS
from treadle.cli.main import cli
from treadle.core.errors import ArtifactError, ConfigError, RunError
from treadle.sft import exporters
from treadle.sft.exporters import FORMATS, export_rows

HOSTILE = '"}]}\n{"instruction": "x"}\r\n=cmd()\u2028\u0085\x1b[2J\x00 <|im_end|> ${HOME} \U0001f680 ' + "\\"
HOSTILE_TURNS = as_messages(("system", HOSTILE), ("user", HOSTILE), ("assistant", HOSTILE))
DIALOGUE = as_messages(
    ("system", "Guess."),
    ("user", "Which?"),
    ("assistant", "I say 50"),
    ("user", "Higher."),
    ("assistant", HOSTILE),
    ("user", "Lower."),
    ("user", "Hurry."),
    ("assistant", "I say 62"),
)
SCHEMAS = [
    {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    }
]
NATIVE = {
    "tool_schemas": json.dumps(SCHEMAS),
    "messages": json.dumps(
        [
            {"role": "user", "content": "Q"},
            {
                "role": "assistant",
                "content": "Look.",
                "reasoning": "Hm.",
                "tool_calls": [
                    {"id": "call00001", "name": "search", "arguments": '{"query":"é <b>"}'},
                    {"id": "call00002", "name": "search", "arguments": '{"query":"2"}'},
                ],
            },
            {"role": "tool", "content": "found: é", "tool_call_id": "call00001"},
            {"role": "tool", "content": "", "tool_call_id": "call00002"},
            {"role": "assistant", "content": "A", "reasoning": "Ah."},
        ]
    ),
}
OPENAI_MESSAGES = [
    {"role": "user", "content": "Q"},
    {
        "role": "assistant",
        "content": "Look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": "search", "arguments": '{"query":"é <b>"}'}},
            {"id": "call00002", "type": "function", "function": {"name": "search", "arguments": '{"query":"2"}'}},
        ],
    },
    {"role": "tool", "content": "found: é", "tool_call_id": "call00001"},
    {"role": "tool", "content": "", "tool_call_id": "call00002"},
    {"role": "assistant", "content": "A", "reasoning_content": "Ah."},
]
ROWS = [
    sft_row("a"),
    sft_row("b", results=5, operator="hint_tail", messages=HOSTILE_TURNS, dataset=HOSTILE),
    sft_row("c", messages=as_messages(("user", "c?"), ("assistant", "c."))),
    sft_row("d", **TEXT_MODE),
    sft_row("e", messages=DIALOGUE, dataset="guess"),
]


def load(folder: Path, kind: str, **arguments: Any) -> list[dict[str, Any]]:
    """Return what `datasets` reads."""
    import datasets

    found = datasets.load_dataset(kind, split="train", cache_dir=str(folder.parent / "cache"), **arguments)
    return list(found)


def set_keys(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without the keys that a table fills with null."""
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def exported(tmp_path: Path, name: str, rows: list[dict[str, Any]] = ROWS, **options: Any) -> Path:
    folder = tmp_path / name
    export_rows(table_of(tmp_path / f"root-{name}", rows), name, folder, origin={"run": "test"}, **options)
    return folder


def side_car(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_bytes().split(b"\n")[:-1]]


def llamafactory_rows(folder: Path) -> Iterator[list[tuple[str, str]]]:
    """Yield the rows as LLaMA-Factory takes them apart by `dataset_info.json`: its columns and tags, by its names."""
    info = json.loads((folder / "dataset_info.json").read_text())["sft"]
    columns = info["columns"]
    for row in load(folder, "json", data_files=str(folder / info["file_name"])):
        messages = [("system", row[columns["system"]])]
        if info["formatting"] == "alpaca":
            last = [row[columns["prompt"]], row[columns["response"]]]
            for asked, answer in [*row[columns["history"]], last]:
                messages += [("user", asked), ("assistant", answer)]
        else:
            roles = {tag: name.removesuffix("_tag") for name, tag in info["tags"].items()}
            turns = [
                (turn[info["tags"]["role_tag"]], turn[info["tags"]["content_tag"]]) for turn in row["conversations"]
            ]
            messages += [(roles[role], text) for role, text in turns]
        yield messages


def alternating(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what LLaMA-Factory should find: a system message, then the two sides in turn."""
    found = contents(row)
    joined = [("system", "")] if found[0][0] != "system" else []
    for role, text in found:
        if joined and joined[-1][0] == role:
            joined[-1] = (role, f"{joined[-1][1]}\n\n{text}")
        else:
            joined.append((role, text))
    return joined


@pytest.mark.covers("pareto-12")
@pytest.mark.parametrize("name", ["sharegpt", "alpaca"])
def test_llamafactory_finds_system_and_turns_in_their_columns(tmp_path: Path, name: str) -> None:
    assert list(llamafactory_rows(exported(tmp_path, name))) == [alternating(row) for row in ROWS]


def test_sharegpt_gives_messages_of_tools_the_tag_that_templates_know(tmp_path: Path) -> None:
    turns = as_messages(("user", "Q"), ("assistant", "f()"), ("tool", "1"), ("tool", "2"), ("assistant", "3"))
    few_shot = as_messages(("assistant", "Hi."), ("user", "Q"), ("tool", "1"), ("assistant", "A"))
    folder = exported(tmp_path, "sharegpt", [sft_row("a", messages=turns), sft_row("b", messages=few_shot)])
    tool, mixed = list(llamafactory_rows(folder))
    assert tool[2:4] == [("assistant", "f()"), ("observation", "1\n</tool_response>\n<tool_response>\n2")]
    assert mixed[1:] == [("user", ""), ("assistant", "Hi."), ("user", "Q\n\n1"), ("assistant", "A")]


def test_openai_messages_round_trip_and_have_only_roles_that_its_api_takes(tmp_path: Path) -> None:
    tool = sft_row("f", messages=as_messages(("user", "Q"), ("assistant", "f()"), ("tool", "1"), ("assistant", "3")))
    lines = (exported(tmp_path, "openai", [*ROWS, tool]) / "openai.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b"" and len(lines) == len(ROWS) + 1
    for line, row in zip(lines, ROWS, strict=False):
        assert json.loads(line) == {"messages": json.loads(row["messages"])}
    sent = json.loads(lines[-1])["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "user", "assistant"]
    assert sent[2] == {"role": "user", "content": "1", "name": "tool"}


def test_native_calls_reach_every_format(tmp_path: Path) -> None:
    rows = [sft_row("n", **NATIVE)]
    (line,) = load(tmp_path / "openai", "json", data_files=str(exported(tmp_path, "openai", rows) / "openai.jsonl"))
    assert set_keys(line["messages"]) == OPENAI_MESSAGES
    assert line["tools"] == [{"type": "function", "function": SCHEMAS[0]}]

    (found,) = load(tmp_path / "hf", str(exported(tmp_path, "hf", rows)))
    assert set_keys(found["messages"]) == OPENAI_MESSAGES
    assert json.loads(found["tools"]) == line["tools"]
    prompt = load_tool_tokenizer("qwen").render(line["messages"], open_turn=False, tools=line["tools"])
    assert '"name": "search"' in prompt and "<tool_response>\nfound: é\n</tool_response>\n<tool_response>" in prompt

    (turns,) = llamafactory_rows(exported(tmp_path, "sharegpt", rows))
    calls = '[{"name": "search", "arguments": {"query":"é \\u003cb>"}}, {"name": "search", "arguments": {"query":"2"}}]'
    assert turns == [
        ("system", ""),
        ("user", "Q"),
        ("function", f"<think>\nHm.\n</think>\n\nLook.\n<tool_call>\n{calls}\n</tool_call>"),
        ("observation", "found: é\n</tool_response>\n<tool_response>\n"),
        ("assistant", "<think>\nAh.\n</think>\n\nA"),
    ]
    (turns,) = llamafactory_rows(exported(tmp_path, "alpaca", rows))
    assert [role for role, _ in turns] == ["system", "user", "assistant", "user", "assistant"]
    assert turns[2][1].startswith('<think>\nHm.\n</think>\n\nLook.\n<tool_call>\n{"name": "search", ')


def test_results_inside_turns_can_become_messages(tmp_path: Path) -> None:
    text = "<think>a</think><search>q</search><result>found</result><result>more</result><answer>1</answer>"
    spans = [[text.index("<result>f"), text.index("<result>m")], [text.index("<result>m"), text.index("<answer>")]]
    turn = {"role": "assistant", "content": text, "results": spans}
    row = sft_row("t", messages=json.dumps([{"role": "user", "content": "Q"}, turn]))
    (inside,) = llamafactory_rows(exported(tmp_path / "1", "sharegpt", [row]))
    assert inside == [("system", ""), ("user", "Q"), ("assistant", text)]
    folder = exported(tmp_path / "2", "sharegpt", [row], results_apart=True)
    (apart,) = llamafactory_rows(folder)
    assert apart[2:] == [
        ("assistant", "<think>a</think><search>q</search>"),
        ("observation", "<result>found</result>\n</tool_response>\n<tool_response>\n<result>more</result>"),
        ("assistant", "<answer>1</answer>"),
    ]
    about = json.loads((folder / "export.json").read_text())
    assert about["results"] == "apart" and not any("inside turns" in one for one in about["limitations"])
    openai = json.loads((exported(tmp_path / "3", "openai", [row], results_apart=True) / "openai.jsonl").read_bytes())
    assert [one["role"] for one in openai["messages"]] == ["user", "assistant", "user", "user", "assistant"]
    assert "".join(one["content"] for one in openai["messages"][1:]) == text


def test_hugging_face_dataset_keeps_ids_and_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "_PART_ROWS", 1)
    found = load(tmp_path / "hf", str(exported(tmp_path, "hf")))
    assert [row["input_ids"] for row in found] == [row["input_ids"] for row in ROWS]
    assert [row["labels"] for row in found] == [row["labels"] for row in ROWS]
    assert [row["attention_mask"] for row in found] == [[1] * row["num_tokens"] for row in ROWS]
    assert [set_keys(row["messages"]) for row in found] == [json.loads(row["messages"]) for row in ROWS]
    assert [row["tid"] for row in found] == ["a", "b", "c", "d", "e"]
    assert [row["calls_by_tool"] for row in found] == [row["tools"] for row in ROWS]
    assert {row["tools"] for row in found} == {"[]"}
    assert FORMATS["hf"].limitations == ()
    assert_all_read(tmp_path / "hf", list(found), tmp_path / "cache")


def test_large_tables_become_several_parts_with_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "_PART_ROWS", 1024)
    folder = exported(tmp_path, "hf", [sft_row(f"r{number}", said=1 + number % 7) for number in range(2_500)])
    assert sorted(path.name for path in (folder / "data").iterdir()) == [
        "train-00000.parquet", "train-00001.parquet", "train-00002.parquet",
    ]  # fmt: skip
    found = load(tmp_path / "hf", str(folder))
    assert [row["tid"] for row in found] == [f"r{number}" for number in range(2_500)]
    assert all(len(row["input_ids"]) == len(row["attention_mask"]) == 4 + n % 7 for n, row in enumerate(found))


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_sidecar_lists_row_sources_in_the_same_order(tmp_path: Path, name: str) -> None:
    folder = exported(tmp_path, name)
    assert side_car(folder) == [
        {
            "id": row["question_key"],
            "tid": row["rollout_key"],
            "operator": row["operator"],
            "source": row["dataset"],
            "counts": {"total": 2, "executed": 1, "tools": row["tools"]},
        }
        for row in ROWS
    ]
    about = json.loads((folder / "export.json").read_text())
    assert (about["kind"], about["format"], about["num_rows"], about["num_text_mode"]) == ("sft_rows", name, 5, 1)
    assert bool(about["limitations"]) == (name != "hf")


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    for name in ROW_FORMATS:
        first, second = (exported(tmp_path / place, name) for place in ("1", "2"))
        files = [path.relative_to(first) for path in sorted(first.rglob("*")) if path.is_file()]
        assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)


def test_failed_export_leaves_nothing_and_keeps_an_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = exported(tmp_path, "sharegpt")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    table = table_of(tmp_path / "damaged", ROWS)

    def cut_off(columns: object) -> Iterator[Any]:
        yield from list(type(table).batches(table, list(columns)))[:1]  # type: ignore[call-overload]
        raise ArtifactError("has changed since it was written")

    monkeypatch.setattr(table, "batches", cut_off)
    for target in (folder, tmp_path / "new"):
        with pytest.raises(ArtifactError):
            export_rows(table, "sharegpt", target, origin={}, replace=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".") or name == "new"]


def test_only_an_export_is_ever_replaced(tmp_path: Path) -> None:
    table = table_of(tmp_path / "root", ROWS)
    precious = tmp_path / "home"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="is not an export"):
        export_rows(table, "openai", precious, origin={}, replace=True)
    assert (precious / "thesis.tex").read_text() == "x"

    export_rows(table, "openai", tmp_path / "out", origin={})
    with pytest.raises(ConfigError, match="--force"):
        export_rows(table, "alpaca", tmp_path / "out", origin={})
    export_rows(table, "alpaca", tmp_path / "out", origin={}, replace=True)
    files = ["README.md", "alpaca.jsonl", "dataset_info.json", "export.json", "rows.jsonl"]
    assert sorted(os.listdir(tmp_path / "out")) == files


def test_export_command_writes_files_and_reports_what_is_lost(tmp_path: Path) -> None:
    run_with_rows(tmp_path / "root", ROWS)
    common = ["export", "sft_rows", "--run", "test", "--root", str(tmp_path / "root")]
    done = CliRunner().invoke(cli, [*common, "--format", "sharegpt", "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["num_rows"], said["instance"], said["format"]) == (5, "1/sft_rows", "sharegpt")
    assert "sharegpt has no loss masks" in done.stderr
    assert "1 of 5 rows have no token ids" in done.stderr

    apart = [*common, "--format", "openai", "--out", str(tmp_path / "apart"), "--results", "apart", "--json"]
    done = CliRunner().invoke(cli, apart)
    assert done.exit_code == 0 and "inside turns" not in done.stderr
    assert json.loads((tmp_path / "apart" / "export.json").read_text())["results"] == "apart"

    wrong = CliRunner().invoke(
        cli, [*common, "--format", "hf", "--out", str(tmp_path / "x"), "--instance", "2/sft_rows"]
    )
    assert isinstance(wrong.exception, RunError) and "has no finished 2/sft_rows" in str(wrong.exception)
    assert not (tmp_path / "x").exists()
    assert tuple(FORMATS) == ROW_FORMATS
