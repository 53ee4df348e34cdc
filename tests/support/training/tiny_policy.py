"""A policy of a few thousand weights that calls real tools, made in the environment of the engine `trl` in seconds.

`python tiny_policy.py FOLDER PARQUET SEED` takes the tokenizer in FOLDER and trains a random model on the rows of
PARQUET (`prompt_ids`, and `output_ids` of one possible answer), with probabilities equal to their frequencies.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import torch
from transformers import LlamaConfig, LlamaForCausalLM

_STEPS = 120


def make(folder: Path, parquet: Path, seed: int) -> None:
    """Write weights and configuration into the folder."""
    torch.manual_seed(seed)
    rows = pq.read_table(parquet).to_pylist()
    config = LlamaConfig(
        vocab_size=264,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=max(rows[0]["output_ids"]),
    )
    model = LlamaForCausalLM(config)
    longest = max(len(row["prompt_ids"]) + len(row["output_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for index, row in enumerate(rows):
        prompt, output = torch.tensor(row["prompt_ids"]), torch.tensor(row["output_ids"])
        end = len(prompt) + len(output)
        ids[index, :end] = torch.cat([prompt, output])
        labels[index, len(prompt) : end] = output
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=_STEPS)
    for _ in range(_STEPS):
        loss = model(ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    print(f"loss {loss.item():.3f}", flush=True)
    model.to(torch.float32).save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
