"""Columns of text for a terminal, and Markdown tables. Pure.

Nothing in a cell is taken for markup, and no secret gets out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tuner.redact import redact_text
from tuner.text import clip, plain, width, wrapped

_MARKDOWN = re.compile(r"([\\`*\[\]<>|~])")
#: Columns whose figures are lined up at their right ends.
_RIGHT = frozenset({"KV tokens", "state slots", "slots", "requests", "req", "checks", "ready", "TTFT", "ITL"})
_LONGEST_CELL = 60
#: Narrower where a text goes on in the next line: the columns after it need room too.
_WRAPPED_CELL = 44
LEAST_CELLS = 20


def wrapped_table(head: Sequence[str], rows: Iterable[Sequence[str]], cells: int, indent: str = "") -> str:
    """As :func:`clipped_table`, but nothing is cut: long texts go on in further lines."""
    full = [list(head), *(list(row) for row in rows)]
    widths = [min(_WRAPPED_CELL, max(width(row[i]) for row in full)) for i in range(len(head))]
    room = max(LEAST_CELLS, cells - len(indent) - sum(widths[:-1]) - 2 * (len(widths) - 1))
    widths[-1] = min(room, max(width(row[-1]) for row in full))
    lines = []
    for row in full:
        columns = [wrapped(cell, widths[i]) for i, cell in enumerate(row)]
        for at in range(max(map(len, columns))):
            padded = [
                _padded(column[at] if at < len(column) else "", widths[i], right=head[i] in _RIGHT)
                for i, column in enumerate(columns)
            ]
            lines.append((indent + "  ".join(padded)).rstrip())
    return "\n".join(lines)


def clipped_table(head: Sequence[str], rows: Iterable[Sequence[str]], cells: int) -> str:
    """Columns as wide as what is in them, by terminal cells; the last takes what is left of ``cells``."""
    clipped = [[clip(cell, _LONGEST_CELL) for cell in row[:-1]] + [row[-1]] for row in rows]
    room = max(10, cells - cells_before_last(head, clipped))
    return padded_rows(head, [[*row[:-1], clip(row[-1], room)] for row in clipped])


def padded_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them, nothing cut off."""
    full = [head, *rows]
    widths = [max(width(row[i]) for row in full) for i in range(len(head))]
    return "\n".join(
        "  ".join(_padded(cell, widths[i], right=head[i] in _RIGHT) for i, cell in enumerate(row)).rstrip()
        for row in full
    )


def cells_before_last(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Terminal cells that all columns but the last take, with the gaps after them."""
    return sum(max(width(row[i]) for row in [head, *rows]) + 2 for i in range(len(head) - 1))


def _padded(text: str, cells: int, *, right: bool) -> str:
    room = " " * max(0, cells - width(text))
    return room + text if right else text + room


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are escaped, heads are not."""
    lines = [_markdown_row(head), "|" + "|".join("---:" if name in _RIGHT else "---" for name in head) + "|"]
    return "\n".join([*lines, *(_markdown_row([escaped(cell) for cell in row]) for row in rows)])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escaped(text: str) -> str:
    """``one_line`` with nothing in it that Markdown would take for markup."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def one_line(text: str) -> str:
    """Text of a model, a log or an operator in one line: no control characters, no secrets."""
    return " ".join(redact_text(plain(text)).split())
