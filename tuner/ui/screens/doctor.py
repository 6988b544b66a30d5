"""Doctor: everything found, with its evidence, its remedy, and what the remedy would do to the pools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec
from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.reactive import reactive, var
from textual.widget import Widget
from textual.widgets import Button, OptionList
from textual.widgets.option_list import Option

from tuner.findings import Finding
from tuner.planner.model import Plan, PlanInputs
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round, RoundState
from tuner.text import clip, plain, width
from tuner.ui.bench import Bench, flag_changes
from tuner.ui.preview import preview
from tuner.ui.screens.base import Place
from tuner.ui.widgets.findings_list import sign_of, worst_first
from tuner.ui.wording import flag_value, signed

_ENDED_EARLY = (RoundState.FAILED, RoundState.REFUSED)


class Case(msgspec.Struct, frozen=True):
    """One finding and where it was found: "plan", or a round's name."""

    origin: str
    finding: Finding


class Remedy(msgspec.Struct, frozen=True):
    """What a finding's flags would change on the draft, and the plans without and with them."""

    changes: tuple[tuple[str, object, object], ...] = ()
    now: Plan | None = None
    then: Plan | None = None
    problem: str = ""


def cases(plan: Plan | None, running: Round | None, newest: Round | None) -> tuple[Case, ...]:
    """Findings of the plan on the bench, of the running round, and of the newest one where it failed; worst first."""
    found = [Case("plan", f) for f in plan.findings] if plan is not None else []
    if running is not None:
        found += [Case(running.name, f) for f in running.findings]
    if newest is not None and newest.state in _ENDED_EARLY and (running is None or newest.name != running.name):
        found += [Case(newest.name, f) for f in newest.findings]
    seen: dict[tuple[str, str], Case] = {}
    for case in found:
        seen.setdefault((case.finding.id, case.finding.title), case)
    order = worst_first([case.finding for case in seen.values()])
    return tuple(sorted(seen.values(), key=lambda case: order.index(case.finding)))


class CaseText(Widget):
    """One case in full."""

    case: reactive[Case | None] = reactive(None, layout=True)
    remedy: reactive[Remedy] = reactive(Remedy(), layout=True)

    def render(self) -> Content:
        """What, why, what to do, and what that would give."""
        if self.case is None:
            return Content.assemble(("Nothing found: no advice on this plan or this server.", "$foreground 70%"))
        finding = self.case.finding
        sign, style = sign_of(finding.severity)
        lines = [Content.assemble((f"{sign} ", style), (plain(finding.title), "bold"))]
        lines.append(
            Content.assemble((f"  {finding.id} · {finding.severity} · {_where(self.case)}", "$foreground 50%"))
        )
        if finding.evidence:
            lines += [Content(""), Content.assemble(("Evidence", "bold $primary"))]
            lines += [Content.assemble((f"  {plain(line)}", "$foreground 80%")) for line in finding.evidence]
        if finding.remedy:
            lines += [Content(""), Content.assemble(("Remedy", "bold $primary")), Content(f"  {plain(finding.remedy)}")]
        return Content("\n").join([*lines, *_effect(self.remedy)])


class DoctorScreen(Place):
    """A list of findings, and the one under the cursor."""

    mode = "doctor"
    purpose = "What was found about the plan and the server, why, and what to do."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "apply", "Apply", tooltip="Put the remedy's flags on the Tune screen", id="doctor.apply"),
        Binding("space", "more", "More", tooltip="A page further in the text below", id="doctor.more"),
        Binding("escape,i", "app.go('tune')", "Tune", show=False, tooltip="Back to the Tune screen", id="doctor.back"),
    ]

    shown: var[tuple[Case, ...]] = var(())
    newest: var[Round | None] = var(None)

    def body(self) -> Iterable[Widget]:
        """List, detail, button."""
        yield OptionList(id="cases")
        yield VerticalScroll(CaseText(), Button("Put it on the Tune screen (a)", id="apply", variant="primary",
                                                compact=True), id="case", can_focus=False)  # fmt: skip

    def on_mount(self) -> None:
        """Follows the plan and the server."""
        for name in ("bench", "inputs", "look"):
            self.watch(self.app, name, self._collect, init=False)
        self.watch(self.app, "history_version", self._reload, init=False)
        self.query_one(OptionList).focus()

    def on_screen_resume(self) -> None:
        """Catches up."""
        self._reload()
        self._collect()
        self._list()

    def on_resize(self) -> None:
        """Lines are as long as the screen is wide."""
        self.call_after_refresh(self._list)

    def _reload(self) -> None:
        if self.is_current:
            self._load()

    @work(thread=True, exclusive=True, group="newest")
    def _load(self) -> None:
        try:
            newest = self.tuner.session.history.last()
        except HistoryError as error:
            self.app.call_from_thread(self.tuner.say, str(error), severity="error")
            return
        self.app.call_from_thread(self._loaded, newest)

    def _loaded(self, newest: Round | None) -> None:
        self.newest = newest
        self._collect()

    def _collect(self) -> None:
        if self.is_current:
            app = self.tuner
            planned = preview(app.inputs, app.bench.draft).plan if app.inputs is not None else None
            self.shown = cases(planned, app.running_round, self.newest)
            self._judge()

    def watch_shown(self) -> None:
        """Another list."""
        if self.is_mounted:
            self._list()

    def _list(self) -> None:
        listing = self.query_one(OptionList)
        at = listing.highlighted or 0
        cells = max(20, self.size.width - 4)
        listing.clear_options()
        listing.add_options(Option(_line(case, cells)) for case in self.shown)
        if self.shown:
            listing.highlighted = min(at, len(self.shown) - 1)
        self._judge()

    @on(OptionList.OptionHighlighted)
    def _judge(self) -> None:
        text = self.query_one(CaseText)
        case = self._case()
        text.case = case
        text.remedy = remedy_of(case, self.tuner.bench, self.tuner.inputs) if case is not None else Remedy()
        button = self.query_one("#apply")
        if button.display != bool(text.remedy.changes):
            # The footer is drawn anew with the keys: only when they change.
            button.display = bool(text.remedy.changes)
            self.refresh_bindings()

    @on(OptionList.OptionSelected)
    @on(Button.Pressed)
    def _chosen(self) -> None:
        self.action_apply()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Applying needs a change."""
        if action == "apply":
            return self.is_mounted and bool(self.query_one(CaseText).remedy.changes)
        return True

    def action_more(self) -> None:
        """A page further."""
        self.turn_page("#case")

    def action_apply(self) -> None:
        """The remedy's flags onto the bench."""
        case, remedy = self._case(), self.query_one(CaseText).remedy
        if case is None:
            return
        if not remedy.changes:
            self.tuner.say("This remedy is nothing that a flag can do: see what it says.", severity="warning")
            return
        self.tuner.apply(case.finding.flags)

    def _case(self) -> Case | None:
        at = self.query_one(OptionList).highlighted
        return self.shown[at] if at is not None and at < len(self.shown) else None


def remedy_of(case: Case, bench: Bench, inputs: PlanInputs | None) -> Remedy:
    """What the finding's flags would do to the draft."""
    draft = bench.draft
    mended = draft.with_flags(case.finding.flags)
    changes = tuple((c.name, c.old, c.new) for c in flag_changes(draft.flags, mended.flags))
    if not changes or inputs is None:
        return Remedy(changes)
    then = preview(inputs, mended)
    return Remedy(changes, preview(inputs, draft).plan, then.plan, then.problem)


def _effect(remedy: Remedy) -> list[Content]:
    if not remedy.changes:
        return []
    lines = [Content(""), Content.assemble(("What that would give", "bold $primary"))]
    lines += [
        Content.assemble(f"  {name}{' ' * max(1, 30 - width(name))}",
                         (f"{flag_value(name, old):>12} → ", "$foreground 60%"),
                         (flag_value(name, new), "bold $warning"))
        for name, old, new in remedy.changes
    ]  # fmt: skip
    if remedy.problem:
        return [*lines, Content.assemble(("  ✗ ", "bold $error"), (plain(remedy.problem), "$error"))]
    now, then = remedy.now, remedy.then
    if then is None:
        return lines
    rows: list[tuple[str, float | None, float, int]] = [
        ("KV tokens", now.kv_tokens if now else None, then.kv_tokens, 0)
    ]
    if then.bytes_per_slot:
        rows.append(("State slots", now.mamba_slots if now else None, then.mamba_slots, 0))
    rows += [
        ("Requests at once", now.max_running_requests if now else None, then.max_running_requests, 0),
        ("Longest input, tokens", now.longest_input_tokens if now else None, then.longest_input_tokens, 0),
        ("Free at ready, GiB", now.ready_free_gib if now else None, then.ready_free_gib, 2),
    ]
    for label, was, will, digits in rows:
        before = f"{was:,.{digits}f}" if was is not None else "–"
        change = signed(will, was, digits)
        lines.append(
            Content.assemble(f"  {label:<30}", (f"{before:>12} → ", "$foreground 60%"),
                             (f"{will:>10,.{digits}f}", "bold"),
                             (f"{change:>11}", "$foreground 50%" if change in ("", "=") else "bold $warning"))
        )  # fmt: skip
    if not then.fits:
        lines.append(Content.assemble(("  ✗ ", "bold $error"), ("A start like this will not come up.", "$error")))
    return lines


def _where(case: Case) -> str:
    return "in the plan on the Tune screen" if case.origin == "plan" else f"in {case.origin}"


def _line(case: Case, cells: int) -> Content:
    sign, style = sign_of(case.finding.severity)
    return Content.assemble(
        (f"{sign} ", style), (f"{case.origin:<6}", "bold"), clip(plain(case.finding.title), cells - 8)
    )
