"""Small chat templates with the structure of well-known model families, over tokenizers of three kinds.

Each has what matters to a conversation of several turns: its control tokens, what it strips, drops, moves and refuses.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from support.qwen_tokenizer import qwen_tokenizer

from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.embedded_model import embedded_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Family:
    """A template, its control tokens, those at which the model stops (the first is `eos_token`), and a tokenizer."""

    template: str
    control: tuple[str, ...]
    stops: tuple[str, ...]
    tokenizer: str = "bytes"


_LLAMA3 = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + strftime_now('%d %b %Y') + '\\n\\n' }}
{{- system + '<|eot_id|>' }}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

_GEMMA = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set first = messages[0].content + '\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set first = '' %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate') }}
    {%- endif %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
    {{- (first if loop.first else '') + message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""

_PHI = """
{%- for message in messages %}
    {%- if message.role in ('user', 'assistant') or message.role == 'system' and message.content %}
        {{- '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- else %}{{- eos_token }}{%- endif %}
"""

_QWEN3 = """
{%- set last = namespace(query=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set last.query = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set thought, content = '', message.content %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > last.query and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

_R1 = """{{- bos_token }}
{%- for message in messages if message.role == 'system' %}{{- message.content }}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<\uff5cUser\uff5c>' + message.content }}
    {%- elif message.role == 'assistant' %}
        {{- '<\uff5cAssistant\uff5c>' + message.content.split('</think>')[-1] + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<\uff5cAssistant\uff5c><think>\\n' }}{%- endif %}
"""

_GLM4 = """{{- '[gMASK]<sop>' }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|assistant|>\\n' + message.content.split('</think>')[-1].strip() }}
    {%- elif message.role == 'tool' %}
        {{- '<|observation|>\\n' + message.content }}
    {%- else %}
        {{- '<|' + message.role + '|>\\n' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""

_GPT_OSS = """{{- '<|start|>system<|message|>You are a model.<|end|>' }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}
        {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
    {%- elif message.role == 'tool' %}
        {{- raise_exception('Message has tool role, but there was no previous assistant message with a tool call!') }}
    {%- elif message.role == 'user' or loop.first %}
        {{- '<|start|>' + ('user' if message.role == 'user' else 'developer') }}
        {{- '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""

_MISTRAL = """{{- bos_token }}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content + '\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system if loop.last else '') + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported') }}
    {%- endif %}
{%- endfor %}
"""

_R1_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"

_PLAIN = """
{%- for message in messages %}{{- message.role + ': ' + message.content + '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}
"""

_CHATML = ("<|im_start|>", "<|im_end|>")

FAMILIES = {
    "llama3": Family(
        _LLAMA3,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        ("<|eot_id|>",),
        "qwen",  # like Llama's tokenizer, it keeps newlines before a word together
    ),
    "gemma": Family(_GEMMA, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), ("<eos>", "<end_of_turn>")),
    "phi": Family(
        _PHI,
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        ("<|endoftext|>", "<|end|>"),
        "smollm2",
    ),
    "qwen3": Family(
        _QWEN3, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<|im_end|>", "<|endoftext|>"), "smollm2"
    ),
    "r1": Family(
        _R1,
        ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", _R1_END),
        (_R1_END,),
    ),
    "glm4": Family(
        _GLM4,
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
    ),
    "gpt-oss": Family(
        _GPT_OSS,
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
        ("<|return|>", "<|call|>"),
    ),
    "mistral": Family(_MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), ("</s>",), "metaspace"),
    "plain": Family(_PLAIN, ("</s>",), ("</s>",), "smollm2"),
}


def write_family(family: Family, folder: Path) -> Path:
    """Write a tokenizer folder with the template of a family, and return it; the folder must not exist."""
    from tokenizers import AddedToken, Tokenizer

    folder.mkdir()
    if family.tokenizer == "metaspace":
        tokenizer = _metaspace_tokenizer()
    else:
        sources = {"qwen": qwen_tokenizer, "smollm2": embedded_tokenizer, "bytes": lambda: write_byte_tokenizer(folder)}
        tokenizer = Tokenizer.from_file(str(sources[family.tokenizer]() / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.control])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": family.control[0], "eos_token": family.stops[0], "chat_template": family.template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    stops = [tokenizer.token_to_id(text) for text in family.stops]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    return folder


def _metaspace_tokenizer() -> Tokenizer:
    """Return a tokenizer like SentencePiece: a blank is a letter, put before each text, and bytes are tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    blank = "\u2581"
    letters = [blank, *"abcdefghijklmnopqrstuvwxyz.,:<>|/[]0123456789"]
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, blank + "t", "he"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [(blank, "t"), ("h", "e")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(blank), normalizers.Replace(" ", blank)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(blank, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


# SmolLM2's vocabulary has no token for these bytes of valid UTF-8: six control characters and, in planes 4 to 11, the
# first byte of characters that Unicode has not assigned. Such characters vanish, as they do in the original.
SMOLLM2_LACKS = frozenset(b"\x04\x06\x13\x14\x16\x1d\xf1\xf2")


def spelled(tokenizer: str, text: str) -> str:
    """Return the part of a text that the vocabulary of `qwen`, `smollm2` or `bytes` can spell."""
    if tokenizer == "qwen":  # it normalizes to NFC
        return unicodedata.normalize("NFC", text)
    if tokenizer == "smollm2":
        return "".join(char for char in text if SMOLLM2_LACKS.isdisjoint(char.encode("utf-8", "surrogatepass")))
    return text
