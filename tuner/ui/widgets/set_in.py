"""A paragraph whose further lines stand under its text, not under its sign. Pure."""

from __future__ import annotations

from textual.content import Content

_LEAST_CELLS = 10


def set_in(text: Content, cells: int, by: int) -> Content:
    """``text`` in lines of ``cells``; what follows its first line is set in ``by`` cells, as many as its head takes."""
    first, *rest = text[by:].wrap(max(_LEAST_CELLS, cells - by)) or [Content("")]
    return Content("\n").join([Content.assemble(text[:by], first), *(Content(" " * by) + line for line in rest)])
