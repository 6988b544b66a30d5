"""The last minutes of the running server, one line a reading."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tuner.metrics.model import Readings
from tuner.ui.wording import NONE

if TYPE_CHECKING:
    from tuner.session.watching import Look

#: Looks kept: ten minutes at one a second.
KEPT = 600
_STEPS = "▁▂▃▄▅▆▇█"


class LiveTrend(Widget):
    """KV use, slots in use, running requests and decode speed over the looks kept."""

    version: reactive[int] = reactive(0)

    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[Readings] = deque(maxlen=KEPT)

    def take(self, look: Look | None) -> None:
        """Keeps one look; drawn only while shown. Another server starts a new line."""
        if look is None or look.running is None:
            self._kept.clear()
        elif look.readings is not None and (not self._kept or look.readings.at != self._kept[-1].at):
            self._kept.append(look.readings)
        else:
            return
        if self.is_on_screen:
            self.version += 1

    def render(self) -> Content:
        """Newest at the right."""
        if not self._kept:
            return Content.assemble(("Nothing measured yet.", "$foreground 50%"))
        cells = max(10, (self.size.width or 80) - 24)
        shown = list(self._kept)[-cells:]
        rows = (
            ("KV in use", [_share(r.kv_used_tokens, r.kv_total_tokens) for r in shown], 1.0, "{:.0%}"),
            ("Slots in use", [_share(r.slots_used, r.slots_total) for r in shown], 1.0, "{:.0%}"),
            ("Running", [_number(r.running) for r in shown], None, "{:.0f} req"),
            ("Waiting", [_number(r.queued) for r in shown], None, "{:.0f} req"),
            ("Decode", [r.decode_tokens_per_s for r in shown], None, "{:,.0f} tok/s"),
        )
        lines = [_line(title, values, top, form, cells) for title, values, top, form in rows]
        return Content("\n").join(line for line in lines if line is not None)


def _line(title: str, values: list[float | None], top: float | None, form: str, cells: int) -> Content | None:
    known = [v for v in values if v is not None]
    if not known:
        return None
    highest = top if top is not None else max(1.0, *known)
    signs = "".join(" " if v is None else _STEPS[min(7, int(max(0.0, v) / highest * 7.99))] for v in values)
    last = NONE if values[-1] is None else form.format(values[-1]).replace("%", " %")
    return Content.assemble(
        (f"{title:<13}", "$foreground 60%"), (f"{signs:>{cells}}", "$primary"), (f"{last:>11}", "bold")
    )


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _number(count: int | None) -> float | None:
    return None if count is None else float(count)
