"""Load and apply a model's tokenizer and chat template, without transformers.

Prompts are built and continued as token ids, which requires three guarantees. Plain text never turns into control
tokens (model output, tool results and questions are untrusted). A rendered prompt has the ids that the model was
trained on. Decoding encoded text gives the text back. See `docs/behaviour/llm.md`.
"""

from __future__ import annotations

import bisect
import codecs
import functools
import itertools
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.core import chat_turns
from treadle.core.chat_files import TokenizerFiles, build_tokenizer
from treadle.core.chat_template import compile_template
from treadle.core.chat_tools import ToolSupport, find_tool_support
from treadle.core.chat_turns import text_after_turn, unused_marker, well_formed
from treadle.core.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_Render = Callable[[Sequence[Mapping[str, str]]], str]

_CACHED_PIECES = 256
_CACHED_PIECE_CHARS = 20_000
_KEPT_TOKENIZERS = 4
_loading = threading.Lock()
_loaded: dict[tuple[Path, str], ChatTokenizer] = {}


class ChatTokenizer:
    """A tokenizer and chat template; immutable after loading, and safe to share between tasks and threads.

    Attributes:
        folder: Folder it was loaded from.
        digest: Digest of its files, see `TokenizerFiles.digest`.
        eos_ids: Ids that end a turn, from the tokenizer's and the generation configuration.
        added_tokens: Spellings of all tokens that are matched as a whole: control tokens and other added tokens.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        folder = self.folder = files.folder
        self._tokenizer_json = tokenizer_json = files.tokenizer_json
        # Encodes spellings of special tokens as plain text, from the end of this function on.
        self._plain = build_tokenizer(folder, tokenizer_json)
        self._named = files.named_special_tokens
        self._template = compile_template(folder, files.template)
        added = self._plain.get_added_tokens_decoder()
        self.added_tokens = frozenset(token.content for token in added.values())
        special = {index: token for index, token in added.items() if token.special and token.content}
        self._special_ids: dict[str, int] = {token.content: index for index, token in special.items()}
        # Such a token also matches text that merely normalises to its spelling.
        self._normalizes_specials = any(token.normalized for token in special.values())
        # Longest first, because one spelling may be a prefix of another.
        spellings = sorted(self._special_ids, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")
        self.eos_ids = self._find_eos(files.generation_eos)
        self.digest = files.digest
        # Prompts of a run share their system message, so most of a prompt is already cached.
        self._piece_ids = functools.lru_cache(maxsize=_CACHED_PIECES)(self.encode)
        sample = "a b\n".join(["", *self._special_ids, ""])
        whole = self._encode(self._plain, sample)
        self._plain.encode_special_tokens = True
        # Whether text between special tokens is tokenised as if on its own, as byte-level tokenizers do.
        self._pieces_are_independent = (
            _is_byte_level(self._plain) and not self._normalizes_specials and self._ids_by_pieces(sample) == whole
        )
        self._count_turn_end = functools.lru_cache(maxsize=_CACHED_PIECES)(self._find_turn_end)
        self._find_rewrites = functools.cache(functools.partial(chat_turns.find_rewrites, self))

    @classmethod
    def load(cls, folder: Path) -> ChatTokenizer:
        """Load `tokenizer.json`, `tokenizer_config.json` and the chat template from a model's folder.

        Raises ConfigError naming the file that is missing or damaged. Files that were loaded before give the same
        object: large vocabularies take seconds.
        """
        files = TokenizerFiles.read(Path(folder))
        key = (files.folder, files.digest)
        with _loading:
            tokenizer = _loaded.pop(key, None) or cls(files)
            _loaded[key] = tokenizer
            if len(_loaded) > _KEPT_TOKENIZERS:
                del _loaded[next(iter(_loaded))]
        return tokenizer

    @functools.cached_property
    def vocab_size(self) -> int:
        """Largest id plus one, added tokens included."""
        return max(self._plain.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @functools.cached_property
    def _token_bytes(self) -> dict[int, bytes] | None:
        """Bytes of each id if the decoder is byte-level; lookups are several times faster than decoding."""
        return _bytes_of_ids(self._plain) if _is_byte_level(self._plain) else None

    @functools.cached_property
    def _with_specials(self) -> Tokenizer:
        """Tokenizer that encodes spellings of special tokens as those tokens; byte-level ones rarely need it."""
        return build_tokenizer(self.folder, self._tokenizer_json)

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text; spellings of special tokens stay text, and no special token is added.

        Lone surrogates, which no tokenizer can encode, become U+FFFD.
        """
        return self._encode(self._plain, text)

    def encode_with_ends(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of plain text as `encode` does, and for each id the number of characters up to its end.

        Tokens that share a character all end behind it.
        """
        ids = self.encode(text)
        lengths = self._lengths(ids, well_formed(text))
        if lengths is not None:
            return ids, lengths[1:]
        # Characters were normalised, or the vocabulary has no bytes; only the library knows the offsets then.
        encoding = self._plain.encode(well_formed(text), add_special_tokens=False)
        return ids, list(itertools.accumulate((end for _, end in encoding.offsets), max))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included; incomplete characters become U+FFFD, unknown ids nothing."""
        if self._token_bytes is not None:
            try:
                return b"".join(map(self._token_bytes.__getitem__, ids)).decode("utf-8", "replace")
            except KeyError:
                known = [self._token_bytes.get(index, b"") for index in ids]
                return b"".join(known).decode("utf-8", "replace")
        return self._plain.decode(ids if isinstance(ids, list) else list(ids), skip_special_tokens=False)

    def count_within(self, ids: Sequence[int], text: str) -> int:
        """Return the largest number of leading ids whose decoded text is a prefix of `text`."""
        lengths = self._lengths(ids, text)
        if lengths is not None:
            return bisect.bisect_right(lengths, len(text)) - 1
        count = bisect.bisect_right(range(len(ids)), len(text), key=lambda last: len(self.decode(ids[: last + 1])))
        # A character cut in the middle decodes to U+FFFD, so the closest counts may not decode to a prefix.
        while count and not text.startswith(self.decode(ids[:count])):
            count -= 1
        return count

    def counts_before(self, ids: Sequence[int], text: str, positions: Sequence[int]) -> list[int]:
        """Return the number of ids before each of the given positions, in ascending order, of the decoded text.

        A token that spans a position is counted. Takes linear time with byte-level tokenizers.
        """
        lengths = self._lengths(ids, text)
        counts: list[int] = []
        for position in positions:
            if lengths is not None:
                count = bisect.bisect_right(lengths, position) - 1
                length = lengths[count]
            else:
                count = self.count_within(ids, text[:position])
                length = len(self.decode(ids[:count]))
            count += count < len(ids) and length < position
            counts.append(max(count, counts[-1] if counts else 0))
        return counts

    def _lengths(self, ids: Sequence[int], text: str) -> list[int] | None:
        """Return the number of characters that the first 0, 1, ... ids decode to, without an incomplete last character.

        Returns None if one pass is not enough: without the bytes of each id, or if `text` is not a prefix of the
        decoded ids. If the first ids decode to a text that ends in U+FFFD where the whole text has another character,
        they get the length of the next longer prefix.
        """
        if self._token_bytes is None:
            return None
        pieces = list(map(self._token_bytes.get, ids, itertools.repeat(b"")))
        whole = b"".join(pieces).decode("utf-8", "replace")
        if not whole.startswith(text):
            return None
        if whole.isascii():
            return list(itertools.accumulate(map(len, pieces), initial=0))
        return _lengths_of_beginnings(pieces, whole)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, open_turn: bool = True, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Return the prompt as text, with the assistant's turn opened; raise ConfigError if the template refuses.

        The text is for display and for servers that take only text: it does not distinguish a control token from its
        spelling. Without `open_turn` the messages are rendered as a finished conversation. `tools` have the form that
        OpenAI's API takes.
        """
        import jinja2

        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=open_turn,
                **self._named,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ConfigError(f"chat template of {self.folder} refused the messages: {error}") from error

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the ids of the rendered prompt, keeping spellings of control tokens in the messages as plain text.

        The same holds for `tools`. Without such spellings the ids are those of the rendered text as a whole.
        """
        if not tools:
            return self._rendered_ids(messages, self.render)
        if self._has_special(json.dumps(tools, ensure_ascii=False)) or any(map(self._message_has_special, messages)):
            return self._guarded_ids(messages, self.render, tools)
        return self._whole_ids(self.render(messages, tools=tools))

    def conversation_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a finished conversation as a whole, keeping spellings of control tokens as plain text."""
        return self._rendered_ids(messages, functools.partial(self.render, open_turn=False))

    @functools.cached_property
    def tool_support(self) -> ToolSupport:
        """Behaviour of the chat template with tools, found by trying it."""
        return find_tool_support(self)

    def reply_ids(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], int]:
        """Return the ids between two assistant turns, and how many of the first ones end the earlier turn.

        They are the ids of `reply_text`, with spellings of control tokens in the messages kept as plain text. The
        second value counts up to the id of `eos_ids` that the template writes before the first message; it is 0 if
        there is none. If the model itself sampled that id, only the ids after it follow its turn. Raises the errors of
        `reply_text`.
        """
        num_end = self._count_turn_end(_without_content(messages))
        return self._rendered_ids(messages, self._reply_text), num_end

    def reply_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return what the template writes between two assistant turns if an environment writes `messages` there.

        That is the end of the earlier turn, the messages, and the opening of the next turn. The messages of one reply
        belong in one call, because templates group consecutive tool results. Lone surrogates become U+FFFD. The text
        does not distinguish a control token from its spelling. Raises ConfigError naming the role if the template
        refuses or drops a message, and ValueError without messages.
        """
        self._count_turn_end(_without_content(messages))
        return self._reply_text(messages)

    def _reply_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        return well_formed(text_after_turn(self, messages))

    def context_rewrites(self, roles: Sequence[str] = ("user", "tool")) -> dict[str, str]:
        """Return how the template rewrites a growing conversation, as the predicate of a sentence per kind of rewrite.

        Contexts are append-only: the prompt's ids, a turn's ids, `reply_ids`, the next turn's ids, and so on. Without
        rewrites they equal `prompt_ids` of the whole conversation, unless a token crosses the border of a turn (of one
        that starts with a newline, for example). `roles` are those of the environment's messages; those that the
        template refuses are skipped. For the kinds see `treadle.core.chat_turns.find_rewrites`. Computed once.
        """
        return dict(self._find_rewrites(tuple(roles)))

    @functools.cached_property
    def turn_end_ids(self) -> tuple[int, ...]:
        """Ids that the template puts after an assistant's turn, such as those of `<|im_end|>` and a newline.

        They include one of `eos_ids`: if the template writes none, `eos_token` is appended, or else the smallest of
        `eos_ids`. Raises ConfigError if the template drops the turn or no id ends a turn.
        """
        ids = self._ids_by_pieces(text_after_turn(self, (), open_turn=False))
        if self.eos_ids.isdisjoint(ids):
            if not self.eos_ids:
                raise ConfigError(f"the tokenizer of {self.folder} has no id that ends a turn; set its `eos_token`")
            named = self._plain.token_to_id(self._named.get("eos_token", ""))
            ids.append(min(self.eos_ids) if named is None else named)
        return tuple(ids)

    def _rendered_ids(self, messages: Sequence[Mapping[str, str]], render: _Render) -> list[int]:
        """Return the ids of what `render` returns, keeping spellings of control tokens in messages as plain text."""
        if any(map(self._message_has_special, messages)):
            return self._guarded_ids(messages, render)
        return self._whole_ids(render(messages))

    def _message_has_special(self, message: Mapping[str, str]) -> bool:
        return any(map(self._has_special, message.values()))

    def _whole_ids(self, rendered: str) -> list[int]:
        """Return the ids of a rendered text in which all spellings of special tokens are those tokens."""
        if self._pieces_are_independent:
            return self._ids_by_pieces(rendered)
        return self._encode(self._with_specials, rendered)

    def _guarded_ids(
        self, messages: Sequence[Mapping[str, str]], render: _Render, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Render with placeholders for the spellings, split at control tokens, and encode the rest as plain text."""
        nonce = unused_marker([*messages, {"tools": json.dumps(tools, ensure_ascii=False)}] if tools else messages)
        spelled: list[str] = []

        def hide(match: re.Match[str]) -> str:
            spelled.append(match[0])
            return f"{nonce}{len(spelled) - 1}{nonce}"

        def hidden_in(value: Any) -> Any:
            if isinstance(value, str):
                return self._special_pattern.sub(hide, well_formed(value))
            if isinstance(value, Mapping):
                return {hidden_in(key): hidden_in(item) for key, item in value.items()}
            return [hidden_in(item) for item in value] if isinstance(value, (list, tuple)) else value

        hidden = [
            {key: self._special_pattern.sub(hide, well_formed(value)) for key, value in message.items()}
            for message in messages
        ]
        rendered = self.render(hidden, tools=hidden_in(tools)) if tools else render(hidden)
        marker = re.compile(f"{re.escape(nonce)}(\\d+){re.escape(nonce)}")
        return self._ids_by_pieces(rendered, lambda piece: marker.sub(lambda m: spelled[int(m[1])], piece))

    def _find_turn_end(self, messages: tuple[tuple[tuple[str, str], ...], ...]) -> int:
        """Compute the second value of `reply_ids` for messages without their content; raise ConfigError as it does."""
        ids = self._rendered_ids(*chat_turns.text_before_reply(self, [dict(message) for message in messages]))
        return next((index + 1 for index, item in enumerate(ids) if item in self.eos_ids), 0)

    def _ids_by_pieces(self, rendered: str, restore: Callable[[str], str] | None = None) -> list[int]:
        """Return the ids of a text in which spellings of special tokens are those tokens and the rest is plain text."""
        ids: list[int] = []
        position = 0
        for match in [*self._special_pattern.finditer(rendered), None]:
            piece = rendered[position : match.start() if match else len(rendered)]
            if restore is not None:
                piece = restore(piece)
            if piece:
                ids += self._piece_ids(piece) if len(piece) <= _CACHED_PIECE_CHARS else self.encode(piece)
            if match:
                ids.append(self._special_ids[match[0]])
                position = match.end()
        return ids

    def _has_special(self, text: str) -> bool:
        if self._special_pattern.search(text) is not None:
            return True
        return self._normalizes_specials and not set(self._special_ids.values()).isdisjoint(
            self._encode(self._with_specials, text)
        )

    def _find_eos(self, from_generation: Sequence[int]) -> frozenset[int]:
        eos = self._named.get("eos_token")
        named = self._plain.token_to_id(eos) if isinstance(eos, str) else None
        return frozenset((*from_generation, *(() if named is None else (named,))))

    @staticmethod
    def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
        # Only the batch method can skip computing character offsets, which take a quarter of the time.
        try:
            encoding = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
        except (UnicodeEncodeError, TypeError):
            encoding = tokenizer.encode_batch_fast([well_formed(text)], add_special_tokens=False)[0]
        ids: list[int] = encoding.ids
        return ids


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    """Return whether the decoder, which a tokenizer may lack, maps each character of a token to a byte."""
    from tokenizers import decoders

    return isinstance(tokenizer.decoder, decoders.ByteLevel)


def _bytes_of_ids(tokenizer: Tokenizer) -> dict[int, bytes]:
    """Return the bytes of each id of a byte-level tokenizer."""
    letters = {ord(letter): chr(byte) for byte, letter in enumerate(byte_letters())}
    # Latin-1 characters that represent no byte: a token that contains one is taken as plain text.
    to_latin = {**dict.fromkeys(range(256), "\uffff"), **letters}
    table = {}
    for token, index in tokenizer.get_vocab(with_added_tokens=True).items():
        try:
            table[index] = token.translate(to_latin).encode("latin-1")
        except UnicodeEncodeError:
            table[index] = token.encode()
    return table


def _lengths_of_beginnings(pieces: Sequence[bytes], whole: str) -> list[int]:
    """Compute the lengths for `ChatTokenizer._lengths`."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    length = 0
    lengths = [0]
    for piece in pieces:
        length += len(decoder.decode(piece))
        if not decoder.getstate()[0]:
            lengths.append(length)
        # An incomplete character decodes to one U+FFFD, which is correct only if the whole text has it too.
        else:
            lengths.append(length + 1 if whole[length : length + 1] == "\ufffd" else -1)
    following = len(whole) + 1
    for index in range(len(lengths) - 1, -1, -1):
        following = lengths[index] = lengths[index] if lengths[index] >= 0 else following
    return lengths


def byte_letters() -> list[str]:
    """Return the printable character that byte-level vocabularies use for each byte (GPT-2, Radford et al. 2019)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _without_content(messages: Sequence[Mapping[str, str]]) -> tuple[tuple[tuple[str, str], ...], ...]:
    return tuple([tuple(sorted([item for item in message.items() if item[0] != "content"])) for message in messages])
