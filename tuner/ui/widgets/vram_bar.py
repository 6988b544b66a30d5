"""The card's memory by named terms: the planned start, the running one ghosted under it, and the headroom line."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tuner.planner.model import Plan, Term
from tuner.text import clip, width
from tuner.ui.widgets.palette import FREE, shares, term_colour
from tuner.ui.widgets.sheet import Sheet
from tuner.ui.wording import signed

#: Cells of a term's name in the long table.
_LONG = 24


class VramBar(Widget):
    """Three lines: the bar, the ghost of the running round, the headroom mark."""

    plan: reactive[Plan | None] = reactive(None)
    ghost: reactive[Plan | None] = reactive(None)

    def render(self) -> Content:
        """Segments carry their names, so that the bar reads without colour."""
        cells = self.size.width
        if self.plan is None or cells < 10:
            return Content("")
        ghost = self.ghost if self.ghost is not None else None
        return Content("\n").join([self._bar(self.plan, cells), self._ghost(ghost, cells), self._headroom(cells)])

    def _bar(self, plan: Plan, cells: int) -> Content:
        mark = _headroom_cell(plan, cells)
        parts: list[Content] = []
        at = 0
        widths = shares([t.gib for t in plan.terms], cells)
        for place, (term, wide) in enumerate(zip(plan.terms, widths, strict=True)):
            if wide == 0:
                continue
            free = term.name == FREE
            style = "$foreground 60% on $surface" if free else f"$term-text on {term_colour(term.name, place)}"
            if at <= mark < at + wide:
                # The mark must not hide a letter or a digit of the label.
                rest = " " * (at + wide - mark - 1)
                parts.append(
                    Content.assemble((_segment(term, mark - at), style), ("┊", f"bold {style}"), (rest, style))
                )
            else:
                parts.append(Content.assemble((_segment(term, wide), style)))
            at += wide
        return Content("").join(parts)

    def _ghost(self, ghost: Plan | None, cells: int) -> Content:
        if ghost is None:
            return Content("")
        widths = shares([t.gib for t in ghost.terms], cells)
        return Content.assemble(
            *(
                ("▔" * wide, "$foreground 25%")
                if term.name == FREE
                else ("▀" * wide, f"{term_colour(term.name, place)} 75%")
                for place, (term, wide) in enumerate(zip(ghost.terms, widths, strict=True))
                if wide
            )
        )

    def _headroom(self, cells: int) -> Content:
        plan = self.plan
        if plan is None:
            return Content("")
        mark = _headroom_cell(plan, cells)
        note = f"headroom line {plan.headroom_line_gib:.1f} GiB ┘"
        if width(note) <= mark + 1:
            line = f"{note:>{mark + 1}}"
        else:
            line = clip(" " * mark + f"└ headroom {plan.headroom_line_gib:.1f} GiB", cells)
        short = plan.ready_free_gib < plan.headroom_line_gib
        return Content.assemble((line, "$warning" if short else "$foreground 60%"))


class TermTable(Sheet):
    """The terms of the bar with their sizes; one column where there is room, two where not."""

    plan: reactive[Plan | None] = reactive(None, repaint=False)
    ghost: reactive[Plan | None] = reactive(None, repaint=False)
    tall: reactive[bool] = reactive(False, layout=True)

    def watch_plan(self) -> None:
        """Draws."""
        self.redraw()

    def watch_ghost(self) -> None:
        """Draws."""
        self.redraw()

    def text(self, cells: int) -> Content:
        """A square in the term's colour, its name, GiB, and the change against what runs."""
        if self.plan is None:
            return Content("")
        before = {t.name: t.gib for t in self.ghost.terms} if self.ghost else {}
        terms = [(place, t) for place, t in enumerate(self.plan.terms) if abs(t.gib) >= 0.005 or before.get(t.name)]
        if self.tall:
            return Content("\n").join(self._long(place, t, before, cells) for place, t in terms)
        half = cells // 2
        items = [self._short(place, t, half) for place, t in terms]
        rows = (len(items) + 1) // 2
        lines = []
        for row in range(rows):
            right = items[row + rows] if row + rows < len(items) else Content("")
            lines.append(Content.assemble(items[row], right))
        return Content("\n").join(lines)

    def _short(self, place: int, term: Term, cells: int) -> Content:
        size = f" {term.gib:.1f} GiB"
        room = cells - 2 - len(size) - 1
        name = clip(term.label, room)
        return Content.assemble(
            ("■ ", _square(term, place)), f"{name}{' ' * (room - width(name))}", (size, "bold"), " "
        )

    def _long(self, place: int, term: Term, before: dict[str, float], cells: int) -> Content:
        change = signed(term.gib, before.get(term.name), 2) if before else ""
        wide = min(_LONG, cells - 2 - 11 - 8)
        name = clip(term.label, wide)
        source = clip(str(term.source), max(0, cells - wide - 2 - 11 - 8 - 2))
        return Content.assemble(
            ("■ ", _square(term, place)),
            f"{name}{' ' * (wide - width(name))}",
            (f"{term.gib:7.2f} GiB", "bold"),
            (f"{change:>8}", "$foreground 60%" if change == "=" else "bold $warning"),
            (f"  {source}" if width(source) == width(str(term.source)) else "", "$foreground 60%"),
        )


def _square(term: Term, place: int) -> str:
    return "$foreground 40%" if term.name == FREE else term_colour(term.name, place)


def _segment(term: Term, wide: int) -> str:
    label = term.label
    size = f"{term.gib:.1f}"
    for text in (f" {label} {size} ", f" {label}", f" {label.split()[0]}"):
        if width(text) <= wide:
            return text + " " * (wide - width(text))
    return " " * wide


def _headroom_cell(plan: Plan, cells: int) -> int:
    total = sum(max(0.0, t.gib) for t in plan.terms)
    if total <= 0:
        return 0
    return min(cells - 1, max(0, round((total - plan.headroom_line_gib) / total * cells)))
