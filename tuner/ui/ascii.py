"""Every screen in ASCII, for terminals that have nothing else: a filter over the finished lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from tuner.text import width

VARIABLE = "TUNER_ASCII"

#: One cell for one cell, so that no column moves.
_SIGNS = {
    "━": "=", "─": "-", "╌": "x", "┃": "|", "│": "|", "┊": ":", "▏": "|", "▎": "|", "▊": "|", "▌": "|", "▐": "|",
    "╭": "+", "╮": "+", "╰": "+", "╯": "+", "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┤": "+", "┬": "+",
    "┴": "+", "┼": "+", "▔": "-", "▁": "_", "▂": "_", "▃": "_", "▄": "=", "▅": "=", "▆": "#", "▇": "#", "█": "#",
    "▀": "=", "▍": "#", "▋": "#", "▉": "#", "▒": "%", "·": ".", "●": "O", "○": "o", "◐": "@", "▸": ">", "•": "*",
    "‹": "<", "›": ">", "■": "#", "✓": "+", "✗": "X", "▲": "^", "▼": "v", "≈": "~", "×": "x", "≤": "<", "→": ">",
    "←": "<", "↑": "^", "↓": "v", "⇧": "^", "⌫": "<", "⏎": "<", "–": "-", "—": "-", "−": "-", "…": "~", "’": "'",
    "°": " ",
}  # fmt: skip


def only_ascii(environ: Mapping[str, str] | None = None, encoding: str | None = None) -> bool:
    """Whether the terminal is to get ASCII alone: it is asked for, or the encoding or the console has nothing else."""
    environ = os.environ if environ is None else environ
    asked = environ.get(VARIABLE, "").strip().lower()
    if asked:
        return asked not in ("0", "no", "false")
    # The fonts of the Linux console have 256 or 512 signs, and not the ones drawn here.
    if environ.get("TERM") == "linux":
        return True
    # Textual writes to the error stream.
    used = encoding or getattr(sys.__stderr__, "encoding", None) or "utf-8"
    return "utf" not in used.lower()


def to_ascii(text: str) -> str:
    """``text`` in as many cells; what has no likeness becomes question marks."""
    return text if text.isascii() else "".join(c if c.isascii() else _SIGNS.get(c, "?" * width(c)) for c in text)


class AsciiFilter(LineFilter):
    """Rewrites the text of every segment; styles stay."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same line in ASCII."""
        del background
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
