"""Several rounds beside each other: a column each, only the lines in which they differ."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tuner.redact import redact
from tuner.rounds.diff import POOLS_IN_EFFECT
from tuner.rounds.table import RoundTable, TableRow
from tuner.rounds.values import value_text
from tuner.text import clip, plain, width

_NARROW_NAME, _WIDE_NAME = 27, 34
_COLUMN = 13
_WIDE = 100


class ManyTable(Widget):
    """As many columns as there is room for, from ``first`` on."""

    many: reactive[RoundTable | None] = reactive(None, layout=True)
    first: reactive[int] = reactive(0)
    left_out: reactive[str] = reactive("", layout=True)

    def render(self) -> Content:
        """Flags, what is in effect, what was measured; ``*`` is the best of its line."""
        many = self.many
        if many is None:
            return Content("")
        cells = self.size.width or 80
        name = _WIDE_NAME if cells >= _WIDE else _NARROW_NAME
        shown = slice(self.first, self.first + self.columns)
        lines = [_summary(many), *self._hidden(many)]
        if self.left_out:
            lines.append(Content.assemble((self.left_out, "bold $warning")))
        outcome = TableRow(name="outcome", values=many.outcomes, shown=many.outcomes)
        marks = tuple("*" if r in many.pareto else "" for r in many.rounds)
        trade = TableRow(name="beaten by none", values=marks, shown=marks)
        groups: tuple[tuple[str, Sequence[TableRow]], ...] = (
            ("Flags", many.flags),
            ("In effect", [row for row in many.effective if row.name not in POOLS_IN_EFFECT]),
            ("Measured", (outcome, *many.measures, trade)),
        )
        for title, rows in groups:
            if rows:
                lines += [Content(""), _heads(title, many.rounds[shown], name)]
                lines += [_row(row, many.rounds, shown, name) for row in rows]
        return Content("\n").join(lines)

    @property
    def columns(self) -> int:
        """Rounds that there is room for."""
        cells = self.size.width or 80
        return max(1, (cells - (_WIDE_NAME if cells >= _WIDE else _NARROW_NAME)) // _COLUMN)

    def step(self, steps: int) -> None:
        """Other columns, where not all fit."""
        if self.many is not None:
            self.first = max(0, min(self.first + steps, len(self.many.rounds) - self.columns))

    def watch_many(self) -> None:
        """Other rounds: from the first on."""
        self.first = 0

    def _hidden(self, many: RoundTable) -> list[Content]:
        left, right = self.first, max(0, len(many.rounds) - self.first - self.columns)
        if not left and not right:
            return []
        return [Content.assemble((f"← {left} more · {right} more →", "$foreground 60%"))]


def _summary(many: RoundTable) -> Content:
    mark = "SIMULATED: this proves nothing about a real SGLang." if many.simulated else ""
    return Content.assemble(
        (f"{len(many.rounds)} rounds  ", "bold $primary"),
        plain(many.summary),
        (f"\n{mark}" if mark else "", "bold $warning"),
    )


def _heads(title: str, rounds: Sequence[str], name: int) -> Content:
    return Content.assemble(
        (f"  {title:<{name - 2}}", "bold"), ("".join(f"{r:>{_COLUMN}}" for r in rounds), "bold $primary")
    )


def _row(row: TableRow, rounds: Sequence[str], shown: slice, name: int) -> Content:
    cells = row.shown or tuple(value_text(row.name, redact({row.name: value})[row.name]) for value in row.values)
    unlike = len(row.best) < len(rounds)
    label = clip(plain(row.name), name - 3)
    pieces: list[tuple[str, str]] = [(f"  {label}{' ' * (name - 2 - width(label))}", "")]
    for round_, cell in list(zip(rounds, cells, strict=True))[shown]:
        best = unlike and round_ in row.best
        text = clip(plain(cell), _COLUMN - 3)
        pieces.append((f"{' ' * (_COLUMN - 1 - width(text))}{text}", "bold" if best else "$foreground 80%"))
        pieces.append(("*" if best else " ", "bold $primary"))
    return Content.assemble(*pieces)
