"""FlashRAG's own index builder and retriever, run by the interpreter of its environment (never by Treadle's).

    python flashrag_side.py FOLDER build e5 bge bm25    # build a missing model; indexes of corpus.jsonl
    python flashrag_side.py FOLDER ask NAME...          # of the questions in job.json; prints name -> found per query

A question is `{"method", "index", "way", "queries", "top_n"}`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

MODEL = "model"
POOLING = {"e5": "mean", "bge": "cls"}
MAX_TOKENS = 128
SEED = 20_240


def write_model(folder: Path) -> None:
    """Write a small BERT with random weights and a vocabulary of letters."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters), *".,:?'-"]
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(SEED)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=MAX_TOKENS,
        initializer_range=0.4,
        architectures=["BertModel"],
    )
    model = BertModel(config)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)


def build(folder: Path, method: str) -> None:
    """FlashRAG's index of `corpus.jsonl`: `<method>_Flat.index`, or the folder `bm25`."""
    from flashrag.retriever.index_builder import Index_Builder

    Index_Builder(
        retrieval_method=method,
        model_path=str(folder / MODEL) if method in POOLING else None,
        corpus_path=str(folder / "corpus.jsonl"),
        save_dir=str(folder),
        max_length=MAX_TOKENS,
        batch_size=32,
        use_fp16=False,
        pooling_method=POOLING.get(method),
        faiss_type="Flat",
        bm25_backend="bm25s",
    ).build_index()


def open_retriever(folder: Path, method: str, index: str) -> Any:
    """FlashRAG's retriever over an index, configured as its users do."""
    from flashrag.config import Config
    from flashrag.utils import get_retriever

    return get_retriever(
        Config(
            config_dict={
                "retrieval_method": method,
                "retrieval_model_path": str(folder / MODEL) if method in POOLING else None,
                "index_path": str(folder / index),
                "corpus_path": str(folder / "corpus.jsonl"),
                "retrieval_use_fp16": False,
                "bm25_backend": "bm25s",
                "silent_retrieval": True,
                "disable_save": True,
                "gpu_id": "",
            }
        )
    )


def ask(folder: Path, question: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the retriever's results per query.

    Ways: `batch` and `single` are its two calls; `own_tokenizer` is its engine asked by the tokenizer that it loads
    with the index but does not use.
    """
    retriever = open_retriever(folder, question["method"], question["index"])
    queries, top_n = question["queries"], question["top_n"]
    if question["way"] == "single":
        pairs = [retriever.search(query, num=top_n, return_score=True) for query in queries]
    elif question["way"] == "own_tokenizer":
        tokens = retriever.tokenizer.tokenize(queries, return_as="tuple", update_vocab=False, show_progress=False)
        found = retriever.searcher.retrieve(tokens, k=top_n, show_progress=False)
        pairs = list(zip(found[0].tolist(), found[1].tolist(), strict=True))
    else:
        pairs = list(zip(*retriever.batch_search(queries, num=top_n, return_score=True), strict=True))
    return [_found(documents, scores) for documents, scores in pairs]


def _found(documents: list[dict[str, Any]], scores: list[float]) -> dict[str, Any]:
    """Ids and scores; documents of score 0, with which BM25 answers are filled up, are only counted."""
    related = [
        (document["id"], round(float(score), 6)) for document, score in zip(documents, scores, strict=True) if score
    ]
    ids, kept = zip(*related, strict=True) if related else ((), ())
    return {"ids": ids, "scores": kept, "num_filled_up": len(documents) - len(related)}


def main() -> None:
    """Command line; what FlashRAG prints goes to standard error."""
    folder, task, names = Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3:]
    answers: dict[str, Any] = {}
    with contextlib.redirect_stdout(sys.stderr):
        if task == "build":
            if not (folder / MODEL).is_dir():
                write_model(folder / MODEL)
            for method in names:
                build(folder, method)
        else:
            job = json.loads((folder / "job.json").read_text())
            answers = {name: ask(folder, job[name]) for name in names}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
