"""Text from elsewhere (logs, model answers, process names) made safe for a terminal, and measured in its cells."""

from __future__ import annotations

import re

_ZERO_WIDTH_JOINER = "\u200d"

# Each string-type sequence ends at its terminator; without one only its introducer goes, so a cut log loses no text.
# None runs on over the next introducer: a line of nothing but introducers would be searched to its end from each.
_UNSAFE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC: titles, links, clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x90\x98\x9c-\x9f]*(?:\x1b\\|\x9c)"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # two-character sequences
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # C0 and C1 controls but line feed and tab
    r"|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # direction marks and overrides
    r"|[\u2028\u2029\ufeff\U000e0000-\U000e007f]"  # invisible separators and tags
)
#: Characters that take one cell each, whatever stands beside them: nearly all that the app itself writes (letters of
#: Latin, marks, arrows, signs of mathematics, lines, blocks, shapes, Braille). All others are looked up.
ONE_CELL_EACH = re.compile(
    r"[ -~\xa0-\xac\xae-\u02ff\u2010-\u2027\u2030-\u205e\u2190-\u22ff\u2500-\u25fc\u2800-\u28ff]*"
)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def plain(text: str) -> str:
    """``text`` without escape sequences, control characters (but line feed and tab) and direction overrides.

    Lone surrogates become U+FFFD, so the result can always be encoded. Wide characters stay.
    """
    if text.isprintable():
        return text
    return replaced(_UNSAFE.sub("", text))


def replaced(text: str) -> str:
    """``text`` with U+FFFD for each lone surrogate (a byte of a name that is no UTF-8), so that it can be encoded."""
    return _SURROGATE.sub("\ufffd", text)


def width(text: str) -> int:
    """Terminal cells that ``text`` takes on one line; characters that are not printed count 0."""
    if ONE_CELL_EACH.fullmatch(text):
        return len(text)
    from wcwidth import wcswidth, wcwidth  # tables of a megabyte, which only wide and joined characters need

    cells = wcswidth(text)
    return cells if cells >= 0 else sum(max(0, wcwidth(c)) for c in text)


def clip(text: str, width: int) -> str:
    """``text`` cut to at most ``width`` terminal cells, ending in "…" when something was cut."""
    if width <= 0:
        return ""
    # No need to measure more than can be shown: a cell takes at most a handful of characters.
    if len(text) <= width and _cells(text) <= width:
        return text
    kept = _prefix(text, width)
    if len(kept) == len(text):
        return text
    return _prefix(text, width - 1) + "…"


def fitted(text: str, cells: int, *, right: bool = False) -> str:
    """``text`` in exactly ``cells`` terminal cells: cut, or filled with blanks; ``right``: at their right end."""
    # A joiner at the end would join the first blank to it.
    shown = clip(text, cells).rstrip(_ZERO_WIDTH_JOINER)
    room = " " * (cells - _cells(shown))
    return room + shown if right else shown + room


def wrapped(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` terminal cells (but at least one character), cut at blanks if it can be.

    An empty text is one empty line.
    """
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and _cells(line) + 1 + _cells(word) <= width:
            line += f" {word}"
            continue
        lines += [line] if line else []
        while _cells(word) > width:
            piece = _prefix(word, width) or word[0]
            lines.append(piece)
            word = word[len(piece) :]
        line = word
    return [*lines, line] if line or not lines else lines


_cells = width


def _prefix(text: str, cells: int) -> str:
    if ONE_CELL_EACH.fullmatch(text, 0, cells + 1):
        return text[:cells]
    from wcwidth import wcwidth  # as above

    used = 0
    end = 0
    joined = False
    for char in text:
        step = 0 if joined else max(0, wcwidth(char))
        if used + step > cells:
            break
        used += step
        end += 1
        joined = char == _ZERO_WIDTH_JOINER
    kept = text[:end]
    # A variation selector can widen the character before it, which a count by character does not see.
    while _cells(kept) > cells:
        kept = kept[:-1]
    return kept
