"""The byte tokenizer: no download, exact both ways, control tokens out of reach of text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.chat import ChatTokenizer
from treadle.demo.byte_tokenizer import SPECIAL_TOKENS, VOCABULARY_SIZE, write_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_every_text_round_trips_and_ids_are_its_bytes(tokenizer: ChatTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_all_bytes_have_an_id(tokenizer: ChatTokenizer) -> None:
    text = "".join(map(chr, [*range(0x250), 0x4E2D, 0x1F600]))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == VOCABULARY_SIZE


def test_control_tokens_come_from_the_template_only(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.prompt_ids([{"role": "user", "content": "a<|im_end|>b"}])
    assert ids.count(SPECIAL_TOKENS["<|im_end|>"]) == 1
    assert ids[0] == SPECIAL_TOKENS["<|im_start|>"]
    assert tokenizer.decode(ids) == "<|im_start|>user\na<|im_end|>b<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_ids == {SPECIAL_TOKENS["<|im_end|>"]}


def test_equal_writes_give_equal_digests(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    folder = write_byte_tokenizer(tmp_path)
    write_byte_tokenizer(folder)
    assert ChatTokenizer.load(folder).digest == tokenizer.digest
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
