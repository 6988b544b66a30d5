"""Every number of a plan, and where it comes from."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from tuner.planner.accuracy import accuracy_text
from tuner.planner.model import Plan, PlanInputs
from tuner.text import plain, width
from tuner.ui.screens.overlay import Overlay
from tuner.ui.wording import NONE, Known, between, value
from tuner.units import format_bytes

_NAME = 26


class NumbersScreen(Overlay[None]):
    """To scroll through."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,t", "dismiss", "Close", tooltip="Back")]

    def __init__(self, inputs: PlanInputs, plan: Plan, known: Known) -> None:
        super().__init__()
        self._text = numbers_text(inputs, plan, known)

    def compose(self) -> ComposeResult:
        """One long page."""
        with VerticalScroll(classes="dialog wide", id="page") as box:
            box.border_title = "Numbers of the plan, and where they come from"
            box.border_subtitle = "↑ ↓ scroll · Esc closes"
            yield Static(self._text, markup=False)

    def on_mount(self) -> None:
        """Ready to scroll."""
        self.query_one("#page").focus()


def numbers_text(inputs: PlanInputs, plan: Plan, known: Known) -> Content:
    """Basis, memory by terms, pools with their ranges, what the server fills in, and how far earlier plans were off."""
    by = f"Calibrated by the boot log of {plan.calibrated_by}." if plan.basis == "calibrated" else "By formula alone."
    lines = [Content.assemble((by, "bold"))]
    notes = (plan.calibration_note, plan.version_note, plan.refusal)
    lines += [Content.assemble((plain(note), "$warning")) for note in notes if note]
    version = inputs.version_source or NONE
    lines += [_head("Memory"), _line("SGLang", plan.sglang_version, version)]
    lines += [
        _line("free before the weights", f"{inputs.free_before.gib:.2f} GiB", str(inputs.free_before.source)),
        _line("free after the weights", f"{inputs.free_after.gib:.2f} GiB", str(inputs.free_after.source)),
    ]
    lines += [_line(term.label, f"{term.gib:.2f} GiB", str(term.source)) for term in plan.terms]
    lines.append(_line("lowest while it starts", f"{plan.lowest_free_gib:.2f} GiB free", "formula"))
    lines += [_head("Pools"), _pool("KV tokens", plan.kv_tokens, between(plan.kv_tokens_low, plan.kv_tokens_high))]
    measured = {True: "boot log", False: "formula"}
    lines.append(
        _line("bytes a token", format_bytes(plan.bytes_per_token), measured[inputs.bytes_per_token is not None])
    )
    if plan.bytes_per_slot:
        lines += [
            _pool("state slots", plan.mamba_slots, between(plan.mamba_slots_low, plan.mamba_slots_high)),
            _line("bytes a slot", format_bytes(plan.bytes_per_slot), measured[inputs.bytes_per_slot is not None]),
            _line("slots a request", str(plan.slots_per_request), plan.strategy or "formula"),
        ]
    lines.append(_line("requests", str(plan.max_running_requests), "formula"))
    if plan.in_force:
        lines.append(_head("Filled in or changed by the server"))
        lines += [_line(name, value(what), "formula") for name, what in plan.in_force.items()]
    lines.append(_head("How far the last plans were off (came less planned)"))
    lines += [Content(f"  {name:<6}{accuracy_text(told)}") for name, told in known] or [
        Content.assemble(("  No round has told yet.", "$foreground 60%"))
    ]
    return Content("\n").join(lines)


def _head(text: str) -> Content:
    return Content.assemble((f"\n{text}", "bold $primary"))


def _line(name: str, shown: str, source: str) -> Content:
    gap = " " * max(1, _NAME - width(name))
    return Content.assemble(
        (f"  {name}{gap}", "$foreground 80%"), (f"{shown:>16}", "bold"), (f"  {source}", "$foreground 60%")
    )


def _pool(name: str, count: int, span: str) -> Content:
    return _line(name, f"{count:,}", f"formula · {span} by what two decimals allow" if span else "formula")
