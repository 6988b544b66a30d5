"""The few forms that a page of the guide is written in, line by line. Pure.

``# Title``, ``## Heading``, paragraphs and lists of whole lines, fenced blocks for drawings and commands, `words` to
type between backticks. Lines are broken by hand, so that they stand as they are in a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from tuner.text import width

_FENCE = "```"
_INDENT = "    "


class LineKind(StrEnum):
    """What a line of a page is."""

    TITLE = "title"
    HEADING = "heading"
    TEXT = "text"
    CODE = "code"
    FENCE = "fence"


class Line(msgspec.Struct, frozen=True):
    """A line without the marks that make it what it is."""

    kind: LineKind
    text: str


def lines_of(text: str) -> tuple[Line, ...]:
    """Every line of a page, one for one."""
    lines: list[Line] = []
    inside = False
    for row in text.splitlines():
        if row.startswith(_FENCE):
            inside = not inside
            lines.append(Line(LineKind.FENCE, ""))
        elif inside:
            lines.append(Line(LineKind.CODE, row))
        elif row.startswith("## "):
            lines.append(Line(LineKind.HEADING, heading_of(row)))
        elif row.startswith("# "):
            lines.append(Line(LineKind.TITLE, row[2:]))
        else:
            lines.append(Line(LineKind.TEXT, row))
    return tuple(lines)


def heading_of(row: str) -> str:
    """The words of a heading."""
    return row.removeprefix("## ").strip()


def paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    """What is read in one go: lines up to the next empty one, with the number of the first; each row of code alone."""
    rows = text.splitlines()
    first, block = 0, list[str]()
    for number, line in enumerate(lines_of(text)):
        if line.kind is LineKind.TEXT and line.text and not line.text.startswith("- "):
            first = first if block else number
            block.append(rows[number])
            continue
        if block:
            yield first, block
        first, block = number, []
        if line.kind is LineKind.TEXT and line.text:
            block.append(rows[number])
        elif line.kind is not LineKind.TEXT and line.text:
            yield number, [rows[number]]
    if block:
        yield first, block


def printed(text: str) -> str:
    """A page, or a part of one, as it is printed: headings underlined, drawings and commands moved in."""
    rows: list[str] = []
    for line in lines_of(text):
        match line.kind:
            case LineKind.TITLE:
                rows += [line.text, "=" * width(line.text)]
            case LineKind.HEADING:
                rows += [line.text, "-" * width(line.text)]
            case LineKind.CODE:
                rows.append(f"{_INDENT}{line.text}".rstrip())
            case LineKind.TEXT:
                rows.append(line.text)
            case LineKind.FENCE:
                pass
    return "\n".join(rows).strip()


def shown_rows(text: str) -> tuple[Line, ...]:
    """The lines of a page that a screen draws: all but the fences."""
    return tuple(line for line in lines_of(text) if line.kind is not LineKind.FENCE)


def shown_row(text: str, line: int) -> int:
    """Which of the rows shown is line number ``line`` of the text; both count from 0."""
    return sum(before.kind is not LineKind.FENCE for before in lines_of(text)[:line])
