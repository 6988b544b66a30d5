"""What a start would give, in numbers: each with its change against the running round."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer

from tuner.planner.model import Plan
from tuner.text import clip, plain, width
from tuner.ui.preview import Baseline
from tuner.ui.widgets.sheet import Sheet
from tuner.ui.wording import BINDS, Known, basis, between, names_of, signed, worst_error
from tuner.units import format_bytes

_LABEL = 14
_NUMBER = 11
_CHANGE = 10
#: Seconds that a number which changed stands out.
FRESH_S = 0.8
_NUMBERS = {
    "KV tokens": "kv_tokens",
    "State slots": "mamba_slots",
    "Requests": "max_running_requests",
    "Longest input": "longest_input_tokens",
    "Free at ready": "ready_free_gib",
}


class PoolNumbers(Sheet):
    """KV tokens, state slots, requests at once, longest input, spare memory, what binds, where it comes from."""

    plan: reactive[Plan | None] = reactive(None, repaint=False)
    before: reactive[Baseline] = reactive(Baseline(), repaint=False)
    known: reactive[Known] = reactive((), repaint=False)
    #: Whether there is room for a line of its own for the errors, and for the note on the calibration.
    roomy: reactive[bool] = reactive(False, repaint=False)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        #: Labels of the numbers that have just changed, and when they stop standing out.
        self.fresh: frozenset[str] = frozenset()
        self._settling: Timer | None = None

    def watch_plan(self, old: Plan | None, new: Plan | None) -> None:
        """Draws; what changed stands out for a moment."""
        moved = _moved(old, new)
        if moved:
            self.fresh |= moved
            if self._settling is not None:
                self._settling.stop()
            self._settling = self.set_timer(FRESH_S, self._settle)
        self.redraw()

    def _settle(self) -> None:
        self.fresh = frozenset()
        self.refresh()

    def watch_before(self) -> None:
        """Draws."""
        self.redraw()

    def watch_known(self) -> None:
        """Draws."""
        self.redraw()

    def watch_roomy(self) -> None:
        """Draws."""
        self.redraw()

    def text(self, cells: int) -> Content:
        """One line a number; what will not work is red and says why in the findings below."""
        plan, old = self.plan, self.before
        if plan is None:
            return _running(old)
        row = partial(_row, cells, self.fresh)
        hybrid = plan.slots_per_request > 0 and plan.bytes_per_slot > 0
        rows = [
            row("KV tokens", f"{plan.kv_tokens:,}", signed(plan.kv_tokens, old.kv_tokens),
                 (between(plan.kv_tokens_low, plan.kv_tokens_high),
                        f"{plan.kv_gib:.2f} GiB", f"{format_bytes(plan.bytes_per_token)} each"),
                 fails=plan.kv_tokens <= 0),
        ]  # fmt: skip
        if hybrid:
            rows.append(
                row("State slots", f"{plan.mamba_slots:,}", signed(plan.mamba_slots, old.mamba_slots),
                     (between(plan.mamba_slots_low, plan.mamba_slots_high),
                            f"{plan.mamba_gib:.2f} GiB", f"{plan.slots_per_request} a request"),
                     fails=plan.mamba_slots < plan.slots_per_request)
            )  # fmt: skip
        asked = f"of {plan.requests_asked} asked" if plan.requests_asked is not None else ""
        rows += [
            row("Requests", f"{plan.max_running_requests:,}",
                 signed(plan.max_running_requests, old.max_running_requests), ("at once", asked),
                 fails=plan.max_running_requests <= 0),
            row("Longest input", f"{plan.longest_input_tokens:,} tok",
                 signed(plan.longest_input_tokens, old.longest_input_tokens),
                 (f"context {plan.context_len:,} tok",), fails=plan.longest_input_tokens <= 0),
            row("Free at ready", f"{plan.ready_free_gib:.2f} GiB",
                 signed(plan.ready_free_gib, old.ready_free_gib, 2), (f"lowest {plan.lowest_free_gib:.2f} GiB",),
                 fails=plan.ready_free_gib < 0),
            Content.assemble((f"{'Binds':<{_LABEL}}", "$foreground 70%"),
                             clip(BINDS[plan.binds], cells - _LABEL)),
            Content.assemble((f"{'Numbers':<{_LABEL}}", "$foreground 70%"),
                             (basis(plan, cells - _LABEL, () if self.roomy else self.known), "$foreground 70%")),
        ]  # fmt: skip
        if self.roomy and self.known:
            words = f"{worst_error(self.known)} ({names_of(self.known)})"
            rows.append(Content.assemble((f"{'Last plans':<{_LABEL}}", "$foreground 70%"),
                                         (clip(words, cells - _LABEL), "$foreground 70%")))  # fmt: skip
        if self.roomy and plan.calibration_note:
            rows.append(Content.assemble((plain(plan.calibration_note), "$foreground 60%")))
        return Content("\n").join(rows)


def _running(old: Baseline) -> Content:
    """What runs, where no plan can be made."""
    counts = (("KV tokens", old.kv_tokens), ("State slots", old.mamba_slots), ("Requests", old.max_running_requests))
    rows = [
        Content.assemble((f"{label:<{_LABEL}}", "$foreground 70%"), (f"{count:>{_NUMBER},}", "bold"),
                         (f"  in {old.name}", "$foreground 60%"))
        for label, count in counts if count
    ]  # fmt: skip
    return Content("\n").join(rows)


def _moved(old: Plan | None, new: Plan | None) -> frozenset[str]:
    """Labels of the numbers that differ between two plans, as they are shown."""
    if old is None or new is None:
        return frozenset()
    return frozenset(label for label, name in _NUMBERS.items() if round(getattr(old, name) - getattr(new, name), 2))


def _row(
    cells: int, fresh: Collection[str], label: str, number: str, change: str, notes: tuple[str, ...], *, fails: bool
) -> Content:
    """One line; of the notes as many as there is room for, never a piece of one."""
    settled = change in ("", "=")
    left = cells - _LABEL - _NUMBER - _CHANGE - 2
    note = ""
    for part in filter(None, notes):
        longer = f"{note} · {part}" if note else part
        note = longer if width(longer) <= left else note
    style = "bold $error" if fails else "bold"
    if label in fresh:
        style = "bold $block-cursor-foreground on $block-cursor-background"
    return Content.assemble(
        (f"{label:<{_LABEL}}", "$foreground 70%"),
        " " * (_NUMBER - width(number)),
        (number, style),
        (f"{change:>{_CHANGE}}", "$foreground 60%" if settled else "bold $warning"),
        (f"  {note}" if note else "", "$foreground 60%"),
    )
