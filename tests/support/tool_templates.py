"""Chat templates that know tools, as those of Qwen and Llama 3 do, with tokenizers of their families."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from support.chat_templates import Family, write_family

from treadle.core.chat import ChatTokenizer

_QWEN = r"""
{%- set has_system = messages[0].role == 'system' %}
{%- if tools or has_system %}{{- '<|im_start|>system\n' }}
    {%- if has_system %}{{- messages[0].content }}{%- endif %}
    {%- if tools %}{{- '\n\nTools:\n<tools>' }}
        {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}{{- '\n</tools>' }}
    {%- endif %}{{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
_LLAMA = r"""{{- bos_token }}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}
    {%- if tools and message.role == 'user' and loop.first %}
        {{- 'Functions, to be called as {"name": function, "parameters": object}:\n' }}
        {%- for tool in tools %}{{- tool | tojson }}{{- '\n' }}{%- endfor %}
    {%- endif %}
    {%- if message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- else %}{{- message.content | trim }}{{- '<|eot_id|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""
FAMILIES = {
    "qwen": Family(_QWEN, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<|im_end|>", "<|endoftext|>"), "qwen"),
    "llama": Family(
        _LLAMA,
        (
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "<|python_tag|>",
        ),
        ("<|eot_id|>", "<|eom_id|>"),
        "qwen",
    ),
}


@cache
def load_tool_tokenizer(name: str) -> ChatTokenizer:
    """Return the tokenizer of `qwen` or `llama`, with a template that knows tools."""
    folder = Path(mkdtemp(prefix="tool-template-")) / name
    return ChatTokenizer.load(write_family(FAMILIES[name], folder))


def call_text(family: str, name: str, arguments: dict[str, object]) -> str:
    """Return a call as models of a family write it."""
    if family == "llama":
        return json.dumps({"name": name, "parameters": arguments})
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
