"""Prompts that no earlier request has left in a cache. Pure: the same salt gives the same prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from tuner.measure.model import Ask, Load

#: Words that are one token each in the vocabularies in use (with the space before them).
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother", "area",
    "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue",
    "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member",
    "law", "car", "city", "community", "name", "president", "team", "minute", "idea", "body", "information", "back",
    "parent", "face", "level", "office", "door", "health", "person", "art", "war", "history", "party", "result",
    "change", "morning", "reason", "research", "girl", "guy", "moment", "air", "teacher", "force", "education",
)  # fmt: skip
#: Tokens of a chat template around a question, and of the question itself.
_AROUND = 24
#: A vocabulary's ends hold special tokens (an image token without an image is an error); below 1,000 some tokenizers
#: keep reserved ones, and every vocabulary in use reaches beyond 8,000.
_FIRST_ID, _IDS = 1_000, 7_000


def words(chance: random.Random, count: int) -> str:
    """``count`` words, each about one token."""
    return " ".join(chance.choice(WORDS) for _ in range(max(1, count)))


def made_up(load: Load, salt: str, repeat: int) -> list[Ask]:
    """The requests of one repeat: fresh from their first word on, so that nothing cached is measured."""
    asks = []
    for number in range(load.requests):
        chance = random.Random(f"{salt} {repeat} {number}")
        text = f"{words(chance, load.input_tokens - _AROUND)}\nGo on with this list of words."
        asks.append(Ask(body=chat_body(text, load.output_tokens)))
    return asks


def chat_body(text: str, output_tokens: int) -> dict[str, Any]:
    """A chat request for exactly ``output_tokens`` (SGLang's ``ignore_eos``), without thinking first."""
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def salted(asks: Sequence[Ask], salt: str) -> list[Ask]:
    """A recorded workload with ``salt`` before its first message: as new to the cache, shared among themselves as ever.

    All requests get the same salt, so that what they share stays shared.
    """
    return [msgspec.structs.replace(ask, body=_salted(ask.body, salt)) for ask in asks]


def _salted(body: dict[str, Any], salt: str) -> dict[str, Any]:
    messages = list(body["messages"])
    first = dict(messages[0])
    content = first.get("content")
    if isinstance(content, str):
        first["content"] = f"[{salt}] {content}"
    elif isinstance(content, list):
        first["content"] = [{"type": "text", "text": f"[{salt}]"}, *content]
    messages[0] = first
    return {**body, "messages": messages}


def token_ids(salt: str, count: int, vocab_size: int | None = None) -> list[int]:
    """A prompt of exactly ``count`` token ids."""
    chance = random.Random(salt)
    first, ids = plain_ids(vocab_size)
    return [first + chance.randrange(ids) for _ in range(count)]


def plain_ids(vocab_size: int | None = None) -> tuple[int, int]:
    """The first token id that is surely a plain word or piece of one, and how many follow from it on."""
    if vocab_size is not None and vocab_size < _FIRST_ID + _IDS:
        return vocab_size // 8, vocab_size - vocab_size // 8
    return _FIRST_ID, _IDS
