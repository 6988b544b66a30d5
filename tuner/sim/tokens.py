"""A tokenizer without a vocabulary: enough for lengths and shared prefixes to behave like those of a real one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

#: Marks of the chat template are one token each; words go in pieces, Chinese in single characters.
_PIECES = re.compile(
    r"<\|[a-z_]+\|>|</?think>|</?tool_call>|\s?[A-Za-z]{1,7}|\d{1,3}|\s?[\u4e00-\u9fff]|\s+|.", re.DOTALL
)


def pieces(text: str) -> list[str]:
    """``text`` cut into tokens; joined they give it back."""
    return _PIECES.findall(text)


def token_ids(texts: Sequence[str], vocabulary: int) -> list[int]:
    """A stable id per token, below ``vocabulary``."""
    return [crc32(text.encode("utf-8", "surrogatepass")) % vocabulary for text in texts]


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""


def chat_prompt(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, thinking: bool) -> str:
    """The prompt that a Qwen chat template makes of a request."""
    parts: list[str] = []
    if tools:
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        parts.append(f"<|im_start|>system\n# Tools\n{listed}\n<|im_end|>\n")
    for message in messages:
        text = _content(message.get("content"))
        calls = message.get("tool_calls")
        if calls:
            text += "<tool_call>" + json.dumps(calls, ensure_ascii=False) + "</tool_call>"
        parts.append(f"<|im_start|>{message.get('role', 'user')}\n{text}<|im_end|>\n")
    parts.append("<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n"))
    return "".join(parts)


def last_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the user asked last."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return _content(message.get("content"))
    return ""
