"""What the pages of the guide name: commands, files, flags, findings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tuner.guide import page
from tuner.guide.lines import LineKind, lines_of, paragraphs

ROOT = Path(__file__).parents[3]
_SPAN = re.compile(r"`([^`]+)`")
_FILE = re.compile(r"(?<![\w/.])(?:tests|tuner|presets|screenshots|\.ci)/[\w./-]*[\w/]")
_FLAG = re.compile(r"(?<![\w./])[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w./])")


def spans(name: str) -> Iterator[str]:
    """What stands between backticks, also across the end of a line."""
    for _, block in paragraphs(page(name).text):
        yield from (" ".join(span.split()) for span in _SPAN.findall(" ".join(block)))


def commands(name: str) -> list[str]:
    """Every command line of the tuner's that a page tells to type."""
    typed = [line.text for line in lines_of(page(name).text) if line.kind is LineKind.CODE]
    return [words for words in (*spans(name), *typed) if words == "tuner" or words.startswith("tuner ")]


def files(name: str) -> set[str]:
    """Paths inside the repository."""
    return set(_FILE.findall(page(name).text))


def flags(name: str) -> set[str]:
    """Words that look like a flag's name."""
    return set(_FLAG.findall(page(name).text))
