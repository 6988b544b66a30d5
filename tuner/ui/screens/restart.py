"""The restart dialog: only what changes, what it will give, what it costs."""

from __future__ import annotations

import msgspec
from textual.content import Content

from tuner.findings import Finding
from tuner.planner.model import Plan
from tuner.session.gate import refusals, weighed
from tuner.text import clip, plain, width
from tuner.ui.bench import FlagChange
from tuner.ui.preview import Baseline
from tuner.ui.screens.dialog import ConfirmScreen
from tuner.ui.wording import NONE, Known, basis, flag_value, in_flight_words, signed, tokens
from tuner.units import format_seconds


class RestartFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the dialog tells. Seconds and counts; None: not known."""

    changes: tuple[FlagChange, ...]
    before: Baseline
    plan: Plan | None
    problem: str = ""
    took_s: float | None = None
    took_name: str = ""
    in_flight: int | None = None
    simulated: bool = False
    known: Known = ()

    @property
    def running(self) -> bool:
        """Whether a server has to be stopped first."""
        return bool(self.before.name)

    @property
    def fails(self) -> bool:
        """Whether the plan says that this start will not come up."""
        return self.refused or (self.plan is not None and not self.plan.fits)

    @property
    def refused(self) -> bool:
        """Whether a round would refuse this start unless it is forced."""
        return self.plan is not None and bool(_refusals(self.plan))


def restart_screen(facts: RestartFacts) -> ConfirmScreen:
    """The dialog; the focus is on Cancel when the start would fail."""
    if facts.running:
        title, yes = f"Restart {facts.before.name}", "Restart"
    else:
        title, yes = "Start the server", "Start"
    if facts.simulated:
        title += " — SIMULATED, not a real SGLang"
    if facts.fails:
        yes = f"{yes} anyway"
    elif facts.problem:
        yes = f"{yes} without a plan"
    return ConfirmScreen(title, restart_text(facts), yes=yes, careful=facts.fails)


def restart_text(facts: RestartFacts) -> Content:
    """The dialog's text."""
    lines = [*_changes(facts), Content(""), *_pools(facts), Content(""), *_costs(facts)]
    return Content("\n").join(lines)


def _changes(facts: RestartFacts) -> list[Content]:
    if not facts.changes:
        same = "No flag changes: the same server again." if facts.running else "With the flags as they stand."
        return [Content.assemble((same, "$foreground 70%"))]
    lines = [Content.assemble((f"{len(facts.changes)} flag{'s' if len(facts.changes) > 1 else ''} changed", "bold"))]
    lines += [
        Content.assemble(
            f"  {_padded(change.name, 30)}",
            (f"{_fitted(flag_value(change.name, change.old), 14)}", "$foreground 60%"),
            (" → ", "$foreground 60%"),
            (clip(flag_value(change.name, change.new), 16), "bold $warning"),
        )
        for change in facts.changes[:8]
    ]
    if len(facts.changes) > 8:
        lines.append(Content.assemble((f"  and {len(facts.changes) - 8} more", "$foreground 60%")))
    return lines


def _pools(facts: RestartFacts) -> list[Content]:
    plan, old = facts.plan, facts.before
    if plan is None:
        return [
            Content.assemble(("! ", "bold $warning"), (plain(facts.problem or "There is no plan yet."), "$warning"))
        ]
    rows = [("KV tokens", old.kv_tokens, plan.kv_tokens)]
    if plan.mamba_slots or old.mamba_slots:
        rows.append(("State slots", old.mamba_slots, plan.mamba_slots))
    rows += [
        ("Requests at once", old.max_running_requests, plan.max_running_requests),
        ("Longest input, tokens", old.longest_input_tokens, plan.longest_input_tokens),
    ]
    lines = [Content.assemble(("Predicted", "bold"), (f"  {basis(plan, 56, facts.known)}", "$foreground 60%"))]
    for label, was, will in rows:
        change = signed(will, was)
        lines.append(
            Content.assemble(
                f"  {_padded(label, 24)}",
                (f"{tokens(was) if facts.running else NONE:>10} → ", "$foreground 60%") if facts.running else "",
                (f"{tokens(will):>10}", "bold"),
                (f"{change:>11}", "$foreground 50%" if change == "=" else "bold $warning"),
            )
        )
    surely = _refusals(plan)
    lines += [
        Content.assemble(("✗ ", "bold $error"), (plain(f"{f.title} {f.remedy}").strip(), "$error")) for f in surely
    ]
    if surely:
        stops = f" It stops {facts.before.name} first." if facts.running else ""
        words = f"Start what is as good as sure to fail?{stops}"
        lines.append(Content.assemble((words, "bold $warning")))
    elif not plan.fits:
        words = "By this plan the start will not come up; its memory is an estimate, so only the round can tell."
        lines.append(Content.assemble(("! ", "bold $warning"), (words, "$warning")))
    return lines


def _refusals(plan: Plan) -> tuple[Finding, ...]:
    return refusals(weighed(plan.findings, plan))


def _costs(facts: RestartFacts) -> list[Content]:
    if facts.took_s is not None:
        lines = [Content(f"It took {format_seconds(facts.took_s)} to be ready before ({facts.took_name}).")]
    else:
        lines = [Content("No start of this kind has been timed yet.")]
    if not facts.running:
        return lines
    if facts.in_flight:
        lines.append(Content.assemble((f"! {in_flight_words(facts.in_flight)}", "bold $warning")))
    elif facts.in_flight == 0:
        lines.append(Content("No request is in flight."))
    else:
        lines.append(Content("Whether requests are in flight is not known."))
    return lines


def _padded(text: str, cells: int) -> str:
    return text + " " * max(1, cells - width(text))


def _fitted(text: str, cells: int) -> str:
    shown = clip(text, cells)
    return " " * (cells - width(shown)) + shown
