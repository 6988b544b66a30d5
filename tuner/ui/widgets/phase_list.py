"""The steps of the work under way, with how long each took and how long it took before."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tuner.serverlog.model import Phase
from tuner.text import clip, plain
from tuner.ui.progress import Progress, Step, StepState, Work
from tuner.ui.widgets.palette import meter
from tuner.ui.wording import took

_SIGNS = {
    StepState.WAITING: ("○", "$foreground 40%"),
    StepState.RUNNING: ("◐", "bold $primary"),
    StepState.DONE: ("✓", "$success"),
    StepState.FAILED: ("✗", "bold $error"),
    StepState.UNSURE: ("?", "bold $warning"),
}


class PhaseList(Widget):
    """One line a step; checks follow the phases."""

    progress: reactive[Progress | None] = reactive(None, layout=True)

    def render(self) -> Content:
        """Signs say what colours say."""
        if self.progress is None:
            return Content("")
        cells = self.size.width or 60
        old = "stopping the old server" if self.progress.work is Work.ROUND else "stopping the server"
        # What never began is only worth a line while it may still come.
        steps = [s for s in self.progress.steps if s.state is not StepState.WAITING or not self.progress.ended]
        lines = [_line(step, cells, old if step.name == Phase.STOPPING else step.name) for step in steps]
        if self.progress.checks:
            lines.append(Content.assemble(("Checks", "$foreground 60%")))
            lines += [_line(step, cells, step.name) for step in self.progress.checks]
        return Content("\n").join(lines)


def _line(step: Step, cells: int, name: str) -> Content:
    sign, style = _SIGNS[step.state]
    passed = took(step.seconds) if step.seconds is not None and step.state is not StepState.WAITING else ""
    before = f"before {took(step.before)}" if step.before is not None else ""
    tail = plain(step.detail).replace("\n", " ") if step.detail else before
    room = cells - 2 - 24 - 12 - 2
    bar = Content("")
    if step.state is StepState.RUNNING and step.before and step.seconds is not None and room >= 24:
        bar = Content.assemble(meter(step.seconds, step.before, 10), " ")
        room -= 11
    return Content.assemble(
        (f"{sign} ", style),
        (f"{clip(name, 24):<24}", "bold" if step.state is StepState.RUNNING else style),
        (f"{passed:>12}", "bold" if step.state is StepState.RUNNING else ""),
        "  ",
        bar,
        (clip(tail, max(0, room)), "$foreground 60%"),
    )
