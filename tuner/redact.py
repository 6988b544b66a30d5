"""Secrets taken out of whatever is kept or shown: values of telling names, and texts that carry them.

SGLang prints ``api_key`` and ``admin_api_key`` in clear, in the ``server_args=`` line of its log and in
``/server_info`` (all versions looked at, 0.5.5 to 0.5.23).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME = re.compile(r"api_?key|secret|password|passwd|authorization|credential|private_key|cookie")
# The name of a variable or file is not the secret itself.
_POINTER_NAME = re.compile(r"_(?:env|file|path|name)$")
# "eos_token" and its kin are text of the model, "bytes_per_token" a size.
_MODEL_TOKEN_NAME = re.compile(
    r"(?:^|_)(?:eos|bos|pad|unk|sep|cls|mask|image|video|audio|per|new|stop|first|last|next|mm|end|start|think)_token$"
)

#: Levels of lists and tables that are looked into; no answer of SGLang has a tenth of them.
_DEEPEST = 64

_NOT_A_SECRET = frozenset({"", "none", "null", "true", "false", HIDDEN})
_QUOTED = r'"(?:\\.|[^"\\\n])*"?|\'(?:\\.|[^\'\\\n])*\'?'
_TELLING = r"(?:api[_.-]?key|secret|passw|authorization|credential|private[_.-]?key|cookie|token)"
# Bounded, so that a hostile log cannot make the search slow.
_NAME = rf"[\w.-]{{0,64}}?{_TELLING}[\w.-]{{0,64}}"
_FLAG = re.compile(
    rf"(?P<head>--(?P<name>{_NAME})[\"']?(?:=|,\s*|\s+(?:\\\s+)?))(?P<value>{_QUOTED}|(?!-)[^\s\"']+)",
    re.IGNORECASE,
)
_PAIR = re.compile(
    rf"(?P<head>(?<![\w.-])(?P<name>{_NAME})(?:\\?[\"'])?\s*[:=]\s*)"
    rf"(?P<value>\$\{{\w+\}}|\\\"[^\"\n]*\"?|{_QUOTED}|[^\s,;&)}}\]\"']+)",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(r"(?P<head>authorization[\"']?\s*[:=]\s*[\"']?)(?P<value>[^\"'\r\n]+)", re.IGNORECASE)
_SCHEME = re.compile(r"(?P<head>\b(?:Bearer|Basic)\s+)(?P<value>[\w.~+/=-]+)", re.IGNORECASE)
_URL_USER = re.compile(
    r"(?P<head>(?<![a-z0-9])[a-z][a-z0-9+.-]{0,15}://)(?P<value>[^\s/@\"']{1,256})(?=@)", re.IGNORECASE
)
_KNOWN_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{6,}|hf_(?=[A-Za-z]*\d)[A-Za-z0-9]{6,}|hf_[A-Za-z]{20,}|gh[pousr]_[A-Za-z0-9]{16,})"
)


def redact(value: Any) -> Any:
    """A copy of ``value`` without secrets: mappings by key, lists also by the flag before, text by its shape.

    ``${NAME}`` stays: it names a variable and tells nothing. What lies deeper than 64 levels is hidden unseen.
    """
    return _redacted(value, _DEEPEST)


def _redacted(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping | list | tuple) and depth <= 0:
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            k: _hidden(k, v, depth - 1) if isinstance(k, str) and _is_secret_name(k) else _redacted(v, depth - 1)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        items = _redact_items(value, depth - 1)
        return items if isinstance(value, list) else tuple(items)
    return value


def redact_text(text: str) -> str:
    """``text`` with the values of keys, tokens, passwords and authorization headers replaced by ``***``."""
    text = _AUTHORIZATION.sub(lambda m: m["head"] + HIDDEN, text)
    text = _SCHEME.sub(lambda m: m["head"] + HIDDEN, text)
    text = _URL_USER.sub(lambda m: m["head"] + HIDDEN, text)
    text = _FLAG.sub(_redact_named, text)
    text = _PAIR.sub(_redact_named, text)
    return _KNOWN_SHAPES.sub(HIDDEN, text)


def _redact_items(items: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    out: list[Any] = []
    secret_next = False
    for item in items:
        is_flag = isinstance(item, str) and item.startswith("--")
        name = item[2:] if is_flag else ""
        out.append(_hidden(name, item, depth) if secret_next and not is_flag else _redacted(item, depth))
        secret_next = is_flag and "=" not in name and _is_secret_name(name)
    return out


def _hidden(name: str, value: Any, depth: int) -> Any:
    """``value`` of the telling name ``name``, hidden down to its leaves; what cannot be a secret stays."""
    if isinstance(value, Mapping | list | tuple) and depth <= 0:
        return HIDDEN
    if isinstance(value, Mapping):
        return {k: _hidden(name, v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_hidden(name, v, depth - 1) for v in value)
    if isinstance(value, str):
        return value if _tells_nothing(value) else HIDDEN
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if _is_token_name(_normal(name)) else HIDDEN
    return HIDDEN if isinstance(value, bytes) else value


def _redact_named(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    bare = value.strip("\\\"'")
    if not _is_secret_name(name) or _tells_nothing(bare):
        return match[0]
    if _is_token_name(_normal(name)) and bare.replace(".", "", 1).isdigit():
        return match[0]
    quote_start = re.match(r"\\?[\"']", value)
    quote = quote_start[0] if quote_start else ""
    closing = quote if quote and len(value) > len(quote) and value.endswith(quote) else ""
    return f"{match['head']}{quote}{HIDDEN}{closing}"


def _tells_nothing(value: str) -> bool:
    return value.lower() in _NOT_A_SECRET or (value.startswith("${") and value.endswith("}"))


def _is_secret_name(name: str) -> bool:
    normal = _normal(name)
    if _POINTER_NAME.search(normal):
        return False
    return bool(_SECRET_NAME.search(normal)) or _is_token_name(normal)


def _is_token_name(normal: str) -> bool:
    return normal.endswith("token") and not _MODEL_TOKEN_NAME.search(normal) and not _SECRET_NAME.search(normal)


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", _CAMEL.sub("_", name).lower()).strip("_")
