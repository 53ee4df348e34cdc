"""Run by the Python of the engine environment `trl`: how `datasets` and TRL read our OpenAI rows, as JSON.

`ANSWER.json TOKENIZER FILE.jsonl TEMPLATE`: for each row, runs of (whether the assistant wrote it, text), with one of
the chat templates that TRL has for training.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

if __name__ == "__main__":
    import trl
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl.data_utils import _tokenize

    answer, folder, file, template = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text()
    found = []
    for row in load_dataset("json", data_files=file, split="train"):
        options = {"chat_template": text, "tools": row["tools"], "return_assistant_tokens_mask": True}
        made = _tokenize(tokenizer, row["messages"], **options)
        pairs = zip(made["input_ids"], made["assistant_masks"], strict=True)
        runs = itertools.groupby(pairs, lambda pair: bool(pair[1]))
        found.append([(is_said, tokenizer.decode([token for token, _ in run])) for is_said, run in runs])
    Path(answer).write_text(json.dumps(found))
