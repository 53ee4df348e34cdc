"""The embedded model on real vLLM, and its tokenizer against transformers."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.runs.processes import Seen, family, kill_alone, remaining, until
from support.sweep import sampled
from tokenizers import Tokenizer

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import VllmServer
from treadle.core.engines.environments import engine_environ, python_of
from treadle.core.engines.serving import ServedModel, embedded_folder, serve
from treadle.core.errors import EngineError

TEXTS = [
    "",
    "Hello, world!",
    "I'd've  gone\tthere \n\n then.",
    "in 1986, 3.14159 or 1,000,000",
    "def f(x):\n    return x ** 2  # square\n",
    "Zürich, 東京, Москва, العربية, 👩‍👩‍👧",
    "<think>a</think><python>print(7*6)</python><result>42</result><answer>42</answer>",
    "\u0000\u00a0\u200b\ufffd",
]
BLANKS_BEFORE_DIGITS = ["x   1", "a\n\n12. b", "  7"]
"""Where transformers' reading of the GGUF file differs from the model's own pre-tokenizer."""

IDS = """
import json, sys
from transformers import AutoTokenizer
given = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(given["folder"], **given["options"])
print(json.dumps({
    "ids": [tokenizer(text, add_special_tokens=False)["input_ids"] for text in given["texts"]],
    "chat": tokenizer.apply_chat_template(given["messages"], add_generation_prompt=True, tokenize=False),
}))
"""
MESSAGES = [{"role": "system", "content": "Use the tools."}, {"role": "user", "content": "Who rules in 1203?"}]

PARENT = """
import signal, sys, time
from pathlib import Path
from treadle.core.engines.config import VllmServer
from treadle.core.engines.serving import serve
from treadle.core.parent_watch import end_with_parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
end_with_parent()
with serve(VllmServer(), log_folder=Path(sys.argv[1])):
    time.sleep(600)
"""


def complete(served: ServedModel, **request: Any) -> dict[str, Any]:
    body = json.dumps({"model": served.model, "return_token_ids": True, **request}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{served.url}/completions", body, headers)) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def ids_by_transformers(folder: Path, texts: list[str], **options: str) -> dict[str, Any]:
    given = json.dumps({"folder": str(folder), "texts": texts, "options": options, "messages": MESSAGES})
    command = [str(python_of("serve")), "-c", IDS]
    environ = engine_environ({"HF_HUB_OFFLINE": "1"})
    done = subprocess.run(command, input=given, env=environ, capture_output=True, text=True, check=True, cwd="/")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "attacker.example"}, 421),
        ({"Origin": "http://attacker.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
    ],
)
def test_vllm_refuses_cross_origin_requests(
    served_embedded_model: ServedModel, headers: dict[str, str], status: int
) -> None:
    base = served_embedded_model.url.removesuffix("/v1")
    for request_line in ("GET /v1/models", "GET /health", "POST /v1/completions", "OPTIONS /v1/models"):
        method, path = request_line.split()
        request = urllib.request.Request(base + path, headers=headers, method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == status


def test_vllm_listens_on_one_address_only(served_embedded_model: ServedModel) -> None:
    """A server on all addresses would be reached by 127.0.0.2 as well."""
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(served_embedded_model.url.replace("127.0.0.1", "127.0.0.2") + "/models")


def test_accepts_and_returns_token_ids(served_embedded_model: ServedModel) -> None:
    assert served_embedded_model.tokenizer_folder is not None
    tokenizer = ChatTokenizer.load(served_embedded_model.tokenizer_folder)
    prompt = tokenizer.prompt_ids([{"role": "user", "content": "Say hello."}])
    answer = complete(served_embedded_model, prompt=prompt, max_tokens=16, temperature=0.0)
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == prompt
    assert answer["usage"]["completion_tokens"] == len(choice["token_ids"]) > 0
    shown = [token for token in choice["token_ids"] if token not in tokenizer.eos_ids]
    assert tokenizer.decode(shown) == choice["text"]


def test_stop_string_ends_the_completion_and_is_reported_and_kept(served_embedded_model: ServedModel) -> None:
    prompt = "".join(f"<python>\nprint({n})\n</python>\n" for n in range(6)) + "<python>\nprint(6)"
    answer = complete(
        served_embedded_model,
        prompt=prompt,
        max_tokens=32,
        temperature=0.0,
        stop=["</search>", "</python>"],
        include_stop_str_in_output=True,
    )
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "</python>"
    assert choice["text"].endswith("</python>")


def test_answers_many_concurrent_seeded_requests(served_embedded_model: ServedModel) -> None:
    """More prompt tokens than one step of the engine takes: in pieces, they kill the CPU engine."""

    def ask(index: int) -> list[int]:
        prompt = list(range(1000 + index, 1900 + index))
        answer = complete(served_embedded_model, prompt=prompt, max_tokens=4, seed=index, temperature=1.0)
        return list(answer["choices"][0]["token_ids"])

    with ThreadPoolExecutor(10) as pool:
        assert all(1 <= len(ids) <= 4 for ids in pool.map(ask, range(10)))


def test_rejects_a_prompt_that_exceeds_the_context(served_embedded_model: ServedModel) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        complete(served_embedded_model, prompt=[100] * 3000, max_tokens=4)
    assert caught.value.code == 400
    assert b"context length" in caught.value.read()


def test_embedded_tokenizer_matches_transformers(serve_environment: Path) -> None:
    folder = embedded_folder("tokenizer")
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = TEXTS + BLANKS_BEFORE_DIGITS
    loaded = ids_by_transformers(embedded_folder("model"), texts)
    assert [own.encode(text, add_special_tokens=False).ids for text in texts] == loaded["ids"]
    assert ChatTokenizer.load(folder).render(MESSAGES) == loaded["chat"]


def test_embedded_tokenizer_matches_gguf_except_blanks_before_digits(serve_environment: Path) -> None:
    own = Tokenizer.from_file(str(embedded_folder("tokenizer") / "tokenizer.json"))
    gguf = embedded_folder("tokenizer").parent / "gguf"
    read = ids_by_transformers(gguf, TEXTS + BLANKS_BEFORE_DIGITS, gguf_file="model.gguf")["ids"]
    assert [own.encode(text, add_special_tokens=False).ids for text in TEXTS] == read[: len(TEXTS)]
    assert [own.encode(text, add_special_tokens=False).tokens for text in BLANKS_BEFORE_DIGITS] == [
        ["x", "ĠĠĠ", "1"],
        ["a", "ĊĊ", "1", "2", ".", "Ġb"],
        ["ĠĠ", "7"],
    ]


def test_server_crash_raises_one_error_with_the_log_tail(serve_environment: Path, tmp_path: Path) -> None:
    settings = VllmServer(extra_args=("--no-such-flag",))
    with (
        pytest.raises(EngineError, match=r"ended with code 2 before it was ready(.|\n)*no-such-flag"),
        serve(settings, log_folder=tmp_path),
    ):
        pass


@pytest.mark.covers("flywheel-5")
@pytest.mark.parametrize("victim", sampled(["run", "its shell"], ["run"]))
def test_no_vllm_process_remains_10_s_after_a_kill(serve_environment: Path, tmp_path: Path, victim: str) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    if victim == "its shell":
        command = ["sh", "-c", f"{shlex.join(command)}; true"]
    killed = subprocess.Popen(command, start_new_session=True)

    def engine_cores() -> list[Seen]:
        return [seen for seen in family(killed.pid) if "EngineCore" in Path(f"/proc/{seen.pid}/cmdline").read_text()]

    def loads() -> bool:
        assert killed.poll() is None
        return any("Starting to load model" in log.read_text() for log in tmp_path.glob("vllm-*.log"))

    # Supervisor, API server, engine core and worker are up once the model is loaded.
    until(loads, "vLLM loads the model", 300.0, 0.2)
    assert engine_cores()
    left = kill_alone(killed)
    assert left is not None and len(left) >= (4 if victim == "run" else 5)
    until(lambda: not remaining(left), f"the end of {[seen.name for seen in left]}", 10.0, 0.05)
