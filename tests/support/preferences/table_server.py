"""A server whose log-probabilities depend on the ids alone, and that says another sentence for each seed."""

from __future__ import annotations

from collections.abc import Callable

from support.servers.scripted_server import Item, RecordedRequest, Reply

from treadle.core.chat import ChatTokenizer

Scorer = Callable[[list[int]], tuple[float, ...]]


def flat(prompt: list[int]) -> tuple[float, ...]:
    """Give every id the same log-probability."""
    return (-1.0,) * (len(prompt) - 1)


class TableScript:
    """Script for a `ScriptedServer`.

    Attributes:
        seen: Prompts that were scored.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, score: Scorer = flat, num_sentences: int = 5, opening: str = "I say "
    ) -> None:
        self.seen: list[list[int]] = []
        self.sampled: list[list[int]] = []
        self._tokenizer = tokenizer
        self._score = score
        self._num_sentences = num_sentences
        self._opening = opening

    def __call__(self, request: RecordedRequest) -> Item:
        """Return the log-probabilities of the prompt if they are asked for, else a sentence that ends its turn."""
        end = self._tokenizer.turn_end_ids[0]
        if "prompt_logprobs" in request.body:
            assert isinstance(request.prompt, list)
            self.seen.append(request.prompt)
            return Reply("x", (self._tokenizer.encode("x")[0],), "length", prompt_logprobs=self._score(request.prompt))
        said = self._opening + "1" * (1 + request.body["seed"] % self._num_sentences)
        if isinstance(request.prompt, list):
            self.sampled.append(request.prompt)
        ids = (*self._tokenizer.encode(said), end)
        if len(ids) > request.body["max_tokens"]:
            cut = ids[: request.body["max_tokens"]]
            return Reply(self._tokenizer.decode(cut), cut, "length")
        return Reply(said, ids)
