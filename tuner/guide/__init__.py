"""The guide: pages of plain text that come with the tuner, for a box that is reached over SSH alone.

A page is Markdown of few forms (see ``tuner.guide.lines``), in lines that a terminal of 80 columns takes as they are.
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from functools import cache
from importlib.resources import files

import msgspec

from tuner.guide.lines import LineKind, heading_of, lines_of, paragraphs

#: The pages in reading order.
NAMES = (
    "two-pools",
    "rounds-in-practice",
    "faq",
    "findings",
    "first-run",
    "tune",
    "restart",
    "live",
    "rounds",
    "compare",
    "log",
    "doctor",
    "presets",
    "auto",
    "files-and-settings",
    "contributing",
)


class GuideError(Exception):
    """A page or section that there is not; the message is one sentence for the operator."""


class Page(msgspec.Struct, frozen=True):
    """One page. ``text`` is all of it as written, its title and the sentence under that included."""

    name: str
    title: str
    summary: str
    text: str


class Section(msgspec.Struct, frozen=True):
    """The part of a page under one heading; ``line`` counts the lines of the page's text from 0."""

    page: str
    heading: str
    line: int
    text: str


class Hit(msgspec.Struct, frozen=True):
    """A place where a word stands: ``text`` is its line, ``section`` the heading over it ("" above the first)."""

    page: str
    section: str
    line: int
    text: str


@cache
def page(name: str) -> Page:
    """The page of this name. Raises GuideError that names the nearest."""
    if name not in NAMES:
        near = difflib.get_close_matches(name.lower(), NAMES, 1)
        hint = f"perhaps {near[0]} is meant" if near else f"there are {', '.join(NAMES)}"
        raise GuideError(f"The guide has no page {name!r}: {hint}.")
    text = files("tuner.guide").joinpath("pages", f"{name}.md").read_text(encoding="utf-8")
    title, _, rest = text.partition("\n\n")
    summary = rest.partition("\n\n")[0]
    return Page(name, title.removeprefix("# "), summary, text)


def pages() -> tuple[Page, ...]:
    """All pages in reading order."""
    return tuple(page(name) for name in NAMES)


def sections(name: str) -> tuple[Section, ...]:
    """The sections of a page in order. Raises GuideError."""
    text = page(name).text
    rows = text.splitlines()
    starts = [i for i, line in enumerate(lines_of(text)) if line.kind is LineKind.HEADING]
    ends = [*starts[1:], len(rows)]
    return tuple(
        Section(name, heading_of(rows[start]), start, "\n".join(rows[start:end]).strip())
        for start, end in zip(starts, ends, strict=True)
    )


def section(heading: str) -> Section | None:
    """The first section under this heading, such as the one of a finding's id; None when no page has it."""
    wanted = heading.lower()
    return next((s for name in NAMES for s in sections(name) if s.heading.lower() == wanted), None)


def search(word: str, within: str | None = None) -> tuple[Hit, ...]:
    """Where ``word`` stands, large or small letters alike, also across the end of a line.

    ``within`` is the name of the one page to look in. Raises GuideError for a page that there is not.
    """
    wanted = " ".join(word.lower().split())
    if not wanted:
        return ()
    return tuple(hit for name in ((within,) if within else NAMES) for hit in _hits(page(name), wanted))


def _hits(looked_at: Page, wanted: str) -> list[Hit]:
    found: list[Hit] = []
    heading = ""
    for first, block in paragraphs(looked_at.text):
        if block[0].startswith("## "):
            heading = heading_of(block[0])
        for row in _rows_with(wanted, block):
            told = heading_of(block[row]).removeprefix("# ")
            found.append(Hit(looked_at.name, heading, first + row, told))
    return found


def _rows_with(wanted: str, block: list[str]) -> list[int]:
    """Rows of a paragraph in which the words wanted begin."""
    joined, starts = "", []
    for row in block:
        starts.append(len(joined))
        joined += " ".join(row.lower().split()) + " "
    places = [at for at in range(len(joined)) if joined.startswith(wanted, at)]
    return list(dict.fromkeys(bisect_right(starts, at) - 1 for at in places))
