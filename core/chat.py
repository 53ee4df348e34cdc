"""A model's tokenizer and chat template, without transformers.

Prompts are made and continued as token ids, so three things must hold: plain text never turns into control tokens
(model output, tool results and questions are hostile), a rendered prompt has the ids that the model was trained on,
and decoding what was encoded gives the text back. See `docs/behaviour/llm.md`.
"""

from __future__ import annotations

import bisect
import codecs
import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.core.chat_template import compile_template
from treadle.core.config import canonical_json
from treadle.core.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CACHED_PIECES = 256
_CACHED_PIECE_CHARS = 20_000


class ChatTokenizer:
    """A tokenizer and chat template. Not changed after loading; safe to share between tasks and threads.

    Attributes:
        folder: Where it was loaded from.
        digest: Hex SHA-256 over the tokenizer's file, the template, the named special tokens and `eos_ids`.
        eos_ids: Ids that end a turn, from the tokenizer's and the generation configuration.
        vocab_size: Number of ids, added tokens included.
        added_tokens: Spellings of tokens that are matched as a whole: those for control, and any beside them.
    """

    def __init__(self, folder: Path, tokenizer_json: bytes, template: str, config: Mapping[str, Any]) -> None:
        self.folder = folder
        self._with_specials = _build_tokenizer(folder, tokenizer_json)
        self._plain = _build_tokenizer(folder, tokenizer_json)
        self._plain.encode_special_tokens = True
        self._named = _named_special_tokens(config)
        self._template = compile_template(folder, template)
        self.vocab_size: int = self._plain.get_vocab_size(with_added_tokens=True)
        added = self._plain.get_added_tokens_decoder()
        self.added_tokens = frozenset(token.content for token in added.values())
        special = {index: token for index, token in added.items() if token.special and token.content}
        self._special_ids: dict[str, int] = {token.content: index for index, token in special.items()}
        # Such a token also matches text that merely normalises to its spelling.
        self._normalizes_specials = any(token.normalized for token in special.values())
        # Longest first: one spelling may begin with another.
        spellings = sorted(self._special_ids, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")
        self.eos_ids = self._find_eos(config.get("generation_eos"))
        facts = canonical_json([self._named, sorted(self.eos_ids)])
        self.digest = hashlib.sha256(
            b"\0".join([hashlib.sha256(tokenizer_json).digest(), template.encode(), facts])
        ).hexdigest()
        self._token_bytes = _token_bytes(self._plain, tokenizer_json)
        # Prompts of a run share their system message, so that most of one is in here already.
        self._piece_ids = functools.lru_cache(maxsize=_CACHED_PIECES)(self.encode)
        self._pieces_are_independent = self._check_pieces()

    @classmethod
    def load(cls, folder: Path) -> ChatTokenizer:
        """Load `tokenizer.json`, `tokenizer_config.json` and the chat template from a model's folder.

        The template is `chat_template.jinja` where that file exists, else the key in `tokenizer_config.json`.
        Raises ConfigError naming the file that is missing or damaged.
        """
        folder = Path(folder)
        tokenizer_json = _read(folder / "tokenizer.json")
        config = _read_object(folder / "tokenizer_config.json")
        generation = folder / "generation_config.json"
        if generation.exists():
            config["generation_eos"] = _read_object(generation).get("eos_token_id")
        return cls(folder, tokenizer_json, _find_template(folder, config), config)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Spellings of special tokens in it stay text; nothing is added before or after.

        Lone surrogates, which no tokenizer can hold, become U+FFFD.
        """
        return self._encode(self._plain, text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included. A cut multi-byte character becomes U+FFFD; unknown ids give nothing."""
        if self._token_bytes is not None:
            try:
                return b"".join(map(self._token_bytes.__getitem__, ids)).decode("utf-8", "replace")
            except KeyError:
                known = [self._token_bytes.get(index, b"") for index in ids]
                return b"".join(known).decode("utf-8", "replace")
        return self._plain.decode(ids if isinstance(ids, list) else list(ids), skip_special_tokens=False)

    def count_within(self, ids: Sequence[int], text: str) -> int:
        """Most ids, from the first on, whose decoded text is a beginning of `text`."""
        lengths = self._lengths(ids, text)
        if lengths is not None:
            return bisect.bisect_right(lengths, len(text)) - 1
        count = bisect.bisect_right(range(len(ids)), len(text), key=lambda last: len(self.decode(ids[: last + 1])))
        # A character cut in the middle decodes to U+FFFD, so the nearest beginnings may not fit.
        while count and not text.startswith(self.decode(ids[:count])):
            count -= 1
        return count

    def counts_before(self, ids: Sequence[int], text: str, positions: Sequence[int]) -> list[int]:
        """Number of ids before each of some growing character positions of `text`, which the ids decode to.

        A token across a position counts in full. Takes time in proportion to the ids, with byte-level tokenizers.
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
        """Characters of the text of the first 0, 1, ... ids, all but what ends inside a character.

        None if that cannot be said in one pass: without the bytes of each id, or if `text` is no beginning of theirs.
        Beginnings that end in a U+FFFD which the whole text does not have get the length of the next one that fits.
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

    def render(self, messages: Sequence[Mapping[str, str]], *, open_turn: bool = True) -> str:
        """The prompt as text, with the assistant's turn opened; raises ConfigError where the template refuses.

        For display and for servers that take text only: the text does not tell a control token from its spelling.
        Without `open_turn` the messages as a finished conversation.
        """
        import jinja2

        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=open_turn,
                **self._named,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ConfigError(f"chat template of {self.folder} refused the messages: {error}") from error

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of the rendered prompt: the template's control tokens become ids, those spelled in a message do not.

        For messages without such spellings the ids are those of the rendered text as a whole.
        """
        if any(self._has_special(value) for message in messages for value in message.values()):
            return self._guarded_prompt_ids(messages)
        rendered = self.render(messages)
        if self._pieces_are_independent:
            return self._ids_by_pieces(rendered)
        return self._encode(self._with_specials, rendered)

    @functools.cached_property
    def turn_end_ids(self) -> tuple[int, ...]:
        """What the template puts after an assistant's turn, such as `<|im_end|>` and a newline.

        One of `eos_ids` is among them: where the template writes none, `eos_token` is added, or the least of them.
        Raises ConfigError where the template drops the turn, or where no id ends a turn.
        """
        turn = _unused_marker(()) * 3
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": turn}]
        _, found, end = self.render(messages, open_turn=False).rpartition(turn)
        if not found:
            raise ConfigError(f"chat template of {self.folder} does not render an assistant's turn")
        ids = self._ids_by_pieces(end)
        if self.eos_ids.isdisjoint(ids):
            if not self.eos_ids:
                raise ConfigError(f"the tokenizer of {self.folder} has no id that ends a turn; set its `eos_token`")
            named = self._plain.token_to_id(self._named.get("eos_token", ""))
            ids.append(min(self.eos_ids) if named is None else named)
        return tuple(ids)

    def _guarded_prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Render with stand-ins for the spellings, cut at the template's own control tokens, encode the rest plain."""
        nonce = _unused_marker(messages)
        spelled: list[str] = []

        def hide(match: re.Match[str]) -> str:
            spelled.append(match[0])
            return f"{nonce}{len(spelled) - 1}{nonce}"

        hidden = [
            {key: self._special_pattern.sub(hide, _well_formed(value)) for key, value in message.items()}
            for message in messages
        ]
        marker = re.compile(f"{re.escape(nonce)}(\\d+){re.escape(nonce)}")
        return self._ids_by_pieces(self.render(hidden), lambda piece: marker.sub(lambda m: spelled[int(m[1])], piece))

    def _ids_by_pieces(self, rendered: str, restore: Callable[[str], str] | None = None) -> list[int]:
        """Ids of a text in which every spelling of a special token is one; what lies between is encoded plain."""
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

    def _check_pieces(self) -> bool:
        """Whether text between special tokens is tokenised as if it stood alone; true of byte-level tokenizers."""
        if self._token_bytes is None or self._normalizes_specials:
            return False
        sample = "a b\n".join(["", *self._special_ids, ""])
        return self._ids_by_pieces(sample) == self._encode(self._with_specials, sample)

    def _has_special(self, text: str) -> bool:
        if self._special_pattern.search(text) is not None:
            return True
        return self._normalizes_specials and not set(self._special_ids.values()).isdisjoint(
            self._encode(self._with_specials, text)
        )

    def _find_eos(self, from_generation: object) -> frozenset[int]:
        listed = from_generation if isinstance(from_generation, list) else [from_generation]
        ids = {item for item in listed if isinstance(item, int)}
        eos = self._named.get("eos_token")
        named = self._plain.token_to_id(eos) if isinstance(eos, str) else None
        return frozenset(ids | ({named} if named is not None else set()))

    @staticmethod
    def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
        # Only batches come without the offsets of the ids in the text, which are a quarter of the work.
        try:
            encoding = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
        except (UnicodeEncodeError, TypeError):
            encoding = tokenizer.encode_batch_fast([_well_formed(text)], add_special_tokens=False)[0]
        ids: list[int] = encoding.ids
        return ids


def _token_bytes(tokenizer: Tokenizer, tokenizer_json: bytes) -> dict[int, bytes] | None:
    """Bytes of each id, for tokenizers whose decoder is byte-level; looking them up is several times faster."""
    decoder = json.loads(tokenizer_json).get("decoder")
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        return None
    letters = {ord(letter): chr(byte) for byte, letter in enumerate(byte_letters())}
    # Latin-1 characters that stand for no byte: a token that holds one is taken as plain text.
    to_latin = {**dict.fromkeys(range(256), "\uffff"), **letters}
    table = {}
    for token, index in tokenizer.get_vocab(with_added_tokens=True).items():
        try:
            table[index] = token.translate(to_latin).encode("latin-1")
        except UnicodeEncodeError:
            table[index] = token.encode()
    return table


def _lengths_of_beginnings(pieces: Sequence[bytes], whole: str) -> list[int]:
    """See `ChatTokenizer._lengths`."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    length = 0
    lengths = [0]
    for piece in pieces:
        length += len(decoder.decode(piece))
        if not decoder.getstate()[0]:
            lengths.append(length)
        # Begun bytes alone decode to one U+FFFD: right where they will never become a character.
        else:
            lengths.append(length + 1 if whole[length : length + 1] == "\ufffd" else -1)
    following = len(whole) + 1
    for index in range(len(lengths) - 1, -1, -1):
        following = lengths[index] = lengths[index] if lengths[index] >= 0 else following
    return lengths


def byte_letters() -> list[str]:
    """The printable character by which byte-level vocabularies write each byte (GPT-2, Radford et al. 2019)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _well_formed(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _unused_marker(messages: Sequence[Mapping[str, str]]) -> str:
    """A short run of private-use characters that occurs in no message."""
    marker = "\ue000"
    while any(marker in value for message in messages for value in message.values()):
        marker += "\ue001"
    return marker


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"tokenizer file {path} cannot be read: {error.strerror}") from error


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"tokenizer file {path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"tokenizer file {path} does not hold a JSON object")
    return value


def _build_tokenizer(folder: Path, tokenizer_json: bytes) -> Tokenizer:
    from tokenizers import Tokenizer

    # Batches of one text gain nothing from threads, and a fork after their use would be warned of.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
    # The library raises bare Exception for every defect of the file.
    except Exception as error:
        raise ConfigError(f"tokenizer file {folder / 'tokenizer.json'} cannot be used: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _named_special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token` and the like, which templates may print."""
    named = {}
    for key in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = config.get(key)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            named[key] = text
    return named


def _find_template(folder: Path, config: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.exists():
        return _read(file).decode("utf-8", "replace")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, Mapping)}
        template = named.get("default")
    if not isinstance(template, str):
        raise ConfigError(
            f"model folder {folder} has no chat template; use the tokenizer of an instruction-tuned model"
        )
    return template
