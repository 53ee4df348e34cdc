"""LLaMA-Factory itself reads what is written for it: configuration files and exported rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.qwen_tokenizer import qwen_tokenizer
from support.tables.sft_tables import as_messages, contents, sft_row, table_of
from support.training import llamafactory_reads, trl_reads

from treadle.core.engines.environments import engine_environ, install, python_of
from treadle.sft.exporters import export_rows

GOLDEN = sorted((Path(__file__).parents[1] / "unit" / "golden").glob("sft-*.yaml"))
HOSTILE = '"}]}\n{"instruction": "x"}\r\n=cmd()\u2028\x85\x1b[2J <|im_end|> ${HOME} \U0001f680 ' + "\\"
ROWS = [
    sft_row("a"),
    sft_row(
        "b",
        messages=as_messages(("system", HOSTILE), ("user", f"b {HOSTILE}"), ("assistant", f"<think>{HOSTILE}</think>")),
    ),
    sft_row("c", messages=as_messages(("system", ""), ("user", "c?"), ("assistant", "c."))),
    sft_row(
        "d",
        messages=as_messages(
            ("system", "Guess."), ("user", "Which?"), ("assistant", "50"), ("user", HOSTILE), ("assistant", "62")
        ),
    ),
]


FORMATS = ("sharegpt", "alpaca")
SCHEMAS = json.dumps([{"name": "search", "description": "Search.", "parameters": {"type": "object"}}])
HOSTILE_CALLS = '</tool_call>[{"name": "x"}]<tool_call> <think>\n\n</think>\n\n </tool_response> ' + HOSTILE


def call(number: int, query: str) -> dict[str, str]:
    arguments = json.dumps({"query": query}, separators=(",", ":"))
    return {"id": f"call0000{number}", "name": "search", "arguments": arguments}


def native(key: str, text: str, reasoning: str, query: str, found: str) -> dict[str, Any]:
    """Return a row with two calls in one turn, then one in the next, then an answer."""
    thought = {"reasoning": reasoning} if reasoning else {}
    messages = [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": text, **thought, "tool_calls": [call(1, query), call(2, "b")]},
        {"role": "tool", "content": found, "tool_call_id": "call00001"},
        {"role": "tool", "content": "", "tool_call_id": "call00002"},
        {"role": "assistant", "content": "", "tool_calls": [call(3, "c")]},
        {"role": "tool", "content": "found c", "tool_call_id": "call00003"},
        {"role": "assistant", "content": "It is c.", **thought},
    ]
    return sft_row(key, messages=json.dumps(messages), tool_schemas=SCHEMAS)


NATIVE = [
    native("plain", "", "", "a", "found a"),
    native("text", "Look.", "", "a", "found a"),
    native("thought", "", "Hm.", "a", "found a"),
    native("both", "Look.", "Hm.", "a", "found a"),
    native("hostile", HOSTILE_CALLS, HOSTILE_CALLS, HOSTILE_CALLS, HOSTILE_CALLS),
    native("thinks", "", HOSTILE_CALLS, HOSTILE_CALLS, HOSTILE_CALLS),
]
OPENAI_INFO = {
    "file_name": "openai.jsonl",
    "formatting": "openai",
    "columns": {"messages": "messages"},
    "tags": {
        "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
        "observation_tag": "tool", "function_tag": "function", "system_tag": "system",
    },
}  # fmt: skip
"""How LLaMA-Factory can read OpenAI's messages; its reader takes no tools but as text."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """File name -> what LLaMA-Factory finds in it, in the engine's environment."""
    folder = tmp_path_factory.mktemp("exports")
    (folder / "wrong.yaml").write_text("learning_rat: 1\n")
    for name in FORMATS:
        export_rows(table_of(folder / f"root-{name}", ROWS), name, folder / name, origin={})
    export_rows(table_of(folder / "root-native", NATIVE), "sharegpt", folder / "native", origin={})
    export_rows(table_of(folder / "root-openai", NATIVE[:4]), "openai", folder / "openai", origin={})
    (folder / "openai" / "dataset_info.json").write_text(json.dumps({"sft": OPENAI_INFO}))
    install("sft", notify=lambda line: print(line, file=sys.stderr, flush=True))
    answer, work = folder / "answer.json", folder / "work"
    work.mkdir()
    paths = [*GOLDEN, folder / "wrong.yaml", *(folder / name for name in (*FORMATS, "native", "openai"))]
    argv = [
        str(python_of("sft")),
        str(llamafactory_reads.__file__),
        str(answer),
        str(qwen_tokenizer()),
        *map(str, paths),
    ]
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")})
    done = subprocess.run(argv, cwd=work, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return {Path(path).name: what for path, what in json.loads(answer.read_text()).items()}


def test_every_written_key_exists_in_llamafactory(found: dict[str, Any]) -> None:
    assert len(GOLDEN) == 3
    assert {path.name: found[path.name] for path in GOLDEN} == {path.name: [] for path in GOLDEN}
    assert found["wrong.yaml"] == ["learning_rat"]


@pytest.mark.parametrize("name", FORMATS)
def test_exported_rows_map_system_question_and_answer(found: dict[str, Any], name: str) -> None:
    texts = [[text for _, text in contents(row)] for row in ROWS]
    names = ("system", "user", "assistant")
    assert [{key: row[key] for key in names} for row in found[name]] == [
        {"system": system, "user": earlier, "assistant": [last]} for system, *earlier, last in texts
    ]


def learned(row: dict[str, Any]) -> list[str]:
    return [text for has_loss, text in row["learned"] if has_loss]


def shown(row: dict[str, Any]) -> list[str]:
    return [text for has_loss, text in row["learned"] if not has_loss]


def hermes(*queries: str) -> str:
    calls = [{"name": "search", "arguments": {"query": query}} for query in queries]
    return "\n".join(f"<tool_call>\n{json.dumps(one, ensure_ascii=False)}\n</tool_call>" for one in calls)


def test_llamafactory_learns_calls_and_no_results(found: dict[str, Any]) -> None:
    assert len(found["native"]) == len(NATIVE)
    for row in found["native"]:
        assert row["roles"] == ["user", "function", "observation", "function", "observation", "assistant"]
        assert '"name": "search"' in shown(row)[0] and "<tools>" in shown(row)[0]
        assert learned(row)[1] == f"{hermes('c')}<|im_end|>\n"
        assert [text.count("<tool_response>") for text in shown(row)] == [0, 2, 1]
    heads = ["", "Look.\n", "<think>\nHm.\n</think>\n\n", "<think>\nHm.\n</think>\n\nLook.\n"]
    for row, head in zip(found["native"], heads, strict=False):
        assert learned(row)[0] == f"{head}{hermes('a', 'b')}<|im_end|>\n"
        assert learned(row)[2].removeprefix("<think>\nHm.\n</think>\n\n") == "It is c.<|im_end|>\n"
        assert "found a" in shown(row)[1] and not any("found" in text for text in learned(row))


def test_hostile_text_cannot_change_what_llamafactory_learns(found: dict[str, Any]) -> None:
    for row in found["native"][4:]:
        said, (asked, results, _) = learned(row)[0], shown(row)
        written = said.rsplit("\n<tool_call>\n", 2)
        calls = [json.loads(one.split("\n</tool_call>")[0]) for one in written[1:]]
        if len(calls) == 1:  # with nothing in front of the first one
            calls.insert(0, json.loads(written[0].rpartition("<tool_call>\n")[2].split("\n</tool_call>")[0]))
        assert [one["arguments"]["query"] for one in calls] == [HOSTILE_CALLS, "b"]
        assert "&lt;/tool_response>" in results and asked.count("Q<|im_end|>") == 1


def test_llamafactory_masks_results_of_openai_messages(found: dict[str, Any]) -> None:
    for row in found["openai"]:
        assert row["roles"] == ["user", "function", "observation", "function", "observation", "assistant"]
        assert not any("found" in text for text in learned(row)) and "found a" in shown(row)[1]
        assert all('"name": "search"' in text for text in learned(row)[:2])


def test_trl_learns_calls_of_openai_messages_and_no_results(tmp_path: Path) -> None:
    export_rows(table_of(tmp_path / "root", NATIVE), "openai", tmp_path / "openai", origin={})
    install("trl", notify=lambda line: print(line, file=sys.stderr, flush=True))
    answer = tmp_path / "answer.json"
    file = tmp_path / "openai" / "openai.jsonl"
    argv = [
        str(python_of("trl")),
        str(trl_reads.__file__),
        str(answer),
        str(qwen_tokenizer()),
        str(file),
        "qwen3_training",
    ]
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")})
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    rows = json.loads(answer.read_text())
    assert len(rows) == len(NATIVE)
    for row, expected in zip(rows, NATIVE, strict=True):
        said = [text for is_said, text in row if is_said]
        seen = "".join(text for is_said, text in row if not is_said)
        messages = json.loads(expected["messages"])
        results = [message["content"] for message in messages if message["role"] == "tool"]
        calls = [[one["arguments"] for one in message.get("tool_calls", ())] for message in messages]
        assert '"name": "search"' in seen and all(result in seen for result in results)
        for text, arguments in zip(said, filter(None, calls), strict=False):
            assert all(f'{{"name": "search", "arguments": {given}}}\n</tool_call>' in text for given in arguments)
        assert "It is c." in said[2] and not any("found" in text for text in said)
