"""Colours of the VRAM terms and the small bars: calm, and never the only carrier of a meaning. Pure."""

from __future__ import annotations

from itertools import pairwise

from textual.content import Content

#: Terms with a colour of their own (``tuner.ui.themes``); another takes one of ``_OTHERS`` by its place.
_TERMS = {
    "weights": "weights",
    "draft": "draft",
    "states": "states",
    "mamba": "states",
    "spec": "spec",
    "kv": "kv",
    "graphs": "graphs",
    "draft_kv": "draft_kv",
    "context": "context",
    "runtime": "runtime",
}
_OTHERS = 4
FREE = "free"

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def term_colour(name: str, place: int) -> str:
    """The theme's variable for a term of the bar."""
    if name in _TERMS:
        return f"$term-{_TERMS[name]}"
    for key, colour in _TERMS.items():
        if name.startswith(key) or key in name.split("_"):
            return f"$term-{colour}"
    return f"$term-{place % _OTHERS + 1}"


def shares(sizes: list[float], cells: int) -> list[int]:
    """Whole cells for each size, in sum ``cells``; what is above nothing gets one at least while there is room."""
    total = sum(max(0.0, s) for s in sizes)
    if total <= 0:
        return [0 for _ in sizes]
    edges = [0]
    passed = 0.0
    for size in sizes:
        passed += max(0.0, size)
        edges.append(round(passed / total * cells))
    widths = [b - a for a, b in pairwise(edges)]
    for i, size in enumerate(sizes):
        if size > 0 and widths[i] == 0 and max(widths) > 1:
            widths[widths.index(max(widths))] -= 1
            widths[i] = 1
    return widths


def meter(
    part: float | None, whole: float | None, cells: int, *, more: float = 0.0, style: str = "$primary"
) -> Content:
    """A bar of ``part`` in ``whole``, then ``more`` (cached, evictable) in a lighter tone."""
    if part is None or not whole:
        return Content.assemble(("·" * cells, "$foreground 30%"))
    full = min(1.0, max(0.0, part / whole)) * cells
    solid = int(full)
    rest = _EIGHTHS[int((full - solid) * 8)] if solid < cells else ""
    rest = "" if rest == " " else rest
    light = max(0, min(cells, round(min(1.0, (part + more) / whole) * cells)) - solid - len(rest))
    empty = cells - solid - len(rest) - light
    return Content.assemble(("█" * solid + rest, style), ("▒" * light, style), ("·" * empty, "$foreground 30%"))
