"""A long text with facts to ask for, fresh for each salt. Pure."""

from __future__ import annotations

import random

#: Tokens of one fact: 11 to 13 in the vocabularies in use, whose digits are tokens of their own.
_TOKENS_PER_FACT = 12
#: A text that much longer than wanted still has the wanted tokens in a vocabulary of longer words.
_SPARE = 1.1


def codes(salt: str, tokens: int) -> tuple[str, str, str]:
    """A text of at least about ``tokens`` tokens, the name of a box in its first half, and that box's code."""
    chance = random.Random(salt)
    facts = max(8, int(tokens * _SPARE) // _TOKENS_PER_FACT)
    numbers = [str(chance.randrange(1_000, 10_000)) for _ in range(facts)]
    text = " ".join(f"The code of box {box} is {code}." for box, code in enumerate(numbers, start=1))
    box = chance.randrange(1, facts // 2 + 1)
    return f"[list {salt}] {text}", str(box), numbers[box - 1]
