"""A recording of the app as one animated SVG, made from Textual's exports of single screens.

A terminal changes little from picture to picture: each rectangle and each piece of text is written once, with the
pictures that show it. Animated by SMIL, which browsers play without a script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

import msgspec

_FONT = "Fira Code, DejaVu Sans Mono, Menlo, Consolas, monospace"
#: Height of the frame that Textual draws above a screen; a recording goes without.
_TOP = 32
_CLASS = re.compile(r"\.(terminal-\d+-r\d+) \{ ([^}]*) \}")
_RECT = re.compile(
    r'<rect fill="[^"]*" x="[^"]*" y="[^"]*" width="[^"]*" height="[^"]*" shape-rendering="crispEdges"/>'
)
_TEXT = re.compile(r'<text class="(terminal-\d+-r\d+)" ([^>]*?) clip-path="[^"]*">([^<]*)</text>')
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_BLANK = re.compile(r"(?:&#160;|\s)*")


class Frame(msgspec.Struct, frozen=True):
    """A screen as ``App.export_screenshot`` gives it, and how long it is seen, seconds."""

    svg: str
    seconds: float


def recording(frames: Sequence[Frame]) -> str:
    """One SVG that shows the frames, all of one size, over and over."""
    shown: dict[tuple[bool, str], set[int]] = {}
    for number, frame in enumerate(frames):
        for piece in _pieces(frame.svg):
            shown.setdefault(piece, set()).add(number)
    # Text lies on rectangles, so these come first; pieces that are seen together share one animation.
    ordered = sorted(shown.items(), key=lambda item: (item[0][0], sorted(item[1])))
    groups = [
        _group("".join(text for (_, text), _ in together), when, frames)
        for (_, when), together in ((key, list(g)) for key, g in groupby(ordered, lambda i: (i[0][0], sorted(i[1]))))
    ]
    size = _SIZE.search(frames[0].svg)
    if size is None:
        raise ValueError("The first frame is no picture of a terminal.")
    wide, high = size.groups()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {_TOP} {wide} {float(high) - _TOP:g}">'
        f"<style>text{{font-family:{_FONT};font-size:20px;white-space:pre}}</style>"
        f'<rect y="{_TOP}" width="{wide}" height="{high}" fill="#13161b"/>'
        f'<g transform="translate(9,41)">{"".join(groups)}</g></svg>\n'
    )


def _pieces(svg: str) -> list[tuple[bool, str]]:
    """Rectangles (False) and texts (True), each with its own style, as Textual's names of styles differ by picture."""
    styles = {name: style.rstrip("; ") for name, style in _CLASS.findall(svg)}
    # The first rectangles are the frame around the terminal, and have no crisp edges.
    pieces = [(False, rect.replace(' shape-rendering="crispEdges"', "")) for rect in _RECT.findall(svg)]
    pieces += [
        (True, f'<text style="{styles[name]}" {place}>{words}</text>')
        for name, place, words in _TEXT.findall(svg)
        if not _BLANK.fullmatch(words)
    ]
    return pieces


def _group(pieces: str, when: Sequence[int], frames: Sequence[Frame]) -> str:
    if len(when) == len(frames):
        return f"<g>{pieces}</g>"
    total = sum(frame.seconds for frame in frames)
    times, values, passed = [], [], 0.0
    for number, frame in enumerate(frames):
        value = "inline" if number in when else "none"
        if not values or values[-1] != value:
            times.append(f"{passed / total:.4f}".rstrip("0").rstrip(".") or "0")
            values.append(value)
        passed += frame.seconds
    # Where nothing is animated, the first frame is seen.
    return (
        f'<g display="{values[0]}"><animate attributeName="display" calcMode="discrete" dur="{total:g}s" '
        f'repeatCount="indefinite" keyTimes="{";".join(times)}" values="{";".join(values)}"/>{pieces}</g>'
    )
