"""The restart dialog: only what changes, what it will give, what it costs."""

from __future__ import annotations

import msgspec
from textual.content import Content

from tuner.findings import Finding, Severity
from tuner.planner.model import Plan
from tuner.rounds.model import Round
from tuner.session.deaths import refused_for_deaths
from tuner.session.gate import refusals, weighed
from tuner.text import clip, fitted, plain, width
from tuner.ui.bench import FlagChange, flag_changes
from tuner.ui.preview import Baseline
from tuner.ui.screens.dialog import ConfirmScreen
from tuner.ui.wording import NONE, Known, basis, changes_line, flag_value, in_flight_words, pools_of, signed
from tuner.units import format_seconds

#: Changes that leave room for the pools on a small terminal.
_MOST_CHANGES = 6
#: Of a dead server's log as much as a small terminal has room for.
_LOG_LINES = 6
_LOG_CELLS = 66
_MOST_WARNINGS = 2
#: First answers that take longer are worth a word: kernels are compiled.
_SLOW_ANSWERS_S = 5.0


class RestartFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the dialog tells. Seconds and counts; None: not known."""

    changes: tuple[FlagChange, ...]
    before: Baseline
    plan: Plan | None
    problem: str = ""
    ready_s: float | None = None
    answers_s: float | None = None
    timed_by: str = ""
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


def force_screen(refused: Round, running: str) -> ConfirmScreen:
    """Asks whether to start what was refused, with what speaks against it and the last words of what died."""
    died = next((f for f in refused.findings if f.evidence), None) if refused_for_deaths(refused) else None
    lines = [Content(plain(refused.reason))]
    if died is not None:
        lines.append(Content.assemble(("The end of the last log", "bold")))
        shown = (clip(plain(text).replace("\n", " "), _LOG_CELLS) for text in died.evidence[-_LOG_LINES:])
        lines += [Content.assemble((text, "$foreground 60%")) for text in shown]
    stops = f"{running} is stopped first. " if running else ""
    sure = "It will most likely die again." if died is not None else "The start is as good as sure to fail."
    lines += [Content(""), Content(f"{stops}{sure} Start the flags of {refused.name} all the same?")]
    title = f"Start anyway what was refused as {refused.name}"
    return ConfirmScreen(title, Content("\n").join(lines), yes="Start anyway", careful=True)


def back_screen(good: Round, failed: Round, running: str) -> ConfirmScreen:
    """Asks whether to start the last good round again."""
    kv, slots, requests = pools_of(good)
    counted = ((kv, "KV tokens"), (slots, "state slots"), (requests, "requests"))
    pools = ", ".join(f"{count:,} {what}" for count, what in counted if count)
    lines = [Content.assemble((f"{good.name} was verified", "bold"), f": {pools}." if pools else ".")]
    if good.note:
        lines.append(Content(f"Note: {plain(good.note)}"))
    changes = flag_changes(failed.recipe.flags, good.recipe.flags)
    lines.append(Content.assemble((f"Against {failed.name}: ", "$foreground 60%"), changes_line(changes)))
    stops = f"{running} is stopped at once, requests in flight are broken off. " if running else ""
    lines += [Content(""), Content(f"{stops}Start {good.name} again, as a new round?")]
    mark = " — SIMULATED, not a real SGLang" if good.simulated else ""
    return ConfirmScreen(f"Go back to {good.name}{mark}", Content("\n").join(lines), yes="Go back")


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
            (fitted(flag_value(change.name, change.old), 14, right=True), "$foreground 60%"),
            (" → ", "$foreground 60%"),
            (clip(flag_value(change.name, change.new), 16), "bold $warning"),
        )
        for change in facts.changes[:_MOST_CHANGES]
    ]
    if len(facts.changes) > _MOST_CHANGES:
        lines.append(Content.assemble((f"  and {len(facts.changes) - _MOST_CHANGES} more", "$foreground 60%")))
    return lines


def _pools(facts: RestartFacts) -> list[Content]:
    plan, old = facts.plan, facts.before
    if plan is None:
        return [
            Content.assemble(("! ", "bold $warning"), (plain(facts.problem or "There is no plan yet."), "$warning"))
        ]
    rows: list[tuple[str, float | None, float, int]] = [("KV tokens", old.kv_tokens, plan.kv_tokens, 0)]
    if plan.mamba_slots or old.mamba_slots:
        rows.append(("State slots", old.mamba_slots, plan.mamba_slots, 0))
    rows += [
        ("Requests", old.max_running_requests, plan.max_running_requests, 0),
        ("Longest input, tokens", old.longest_input_tokens, plan.longest_input_tokens, 0),
        ("Free at ready, GiB", old.ready_free_gib, plan.ready_free_gib, 2),
    ]
    lines = [Content.assemble(("Predicted", "bold"), (f"  {basis(plan, 56, facts.known)}", "$foreground 60%"))]
    for label, was, will, digits in rows:
        change = signed(will, was, digits)
        lines.append(
            Content.assemble(
                f"  {_padded(label, 24)}",
                (f"{_number(was, digits):>10} → ", "$foreground 60%") if facts.running else "",
                (f"{_number(will, digits):>10}", "bold"),
                (f"{change:>11}", "$foreground 60%" if change == "=" else "bold $warning"),
            )
        )
    lines += _new_warnings(plan, old.plan)
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


def _new_warnings(plan: Plan, before: Plan | None) -> list[Content]:
    """What the plan warns of and the running server's does not, a line each."""
    known = {finding.id for finding in before.findings} if before is not None else set()
    told = [f for f in plan.findings if f.severity is Severity.WARNING and f.id not in known]
    return [
        Content.assemble(("! ", "bold $warning"), (clip(plain(f.title), _LOG_CELLS), "$warning"))
        for f in told[:_MOST_WARNINGS]
    ]


def _number(what: float | None, digits: int) -> str:
    return NONE if what is None else f"{what:,.{digits}f}"


def _refusals(plan: Plan) -> tuple[Finding, ...]:
    return refusals(weighed(plan.findings, plan))


def _costs(facts: RestartFacts) -> list[Content]:
    if facts.ready_s is not None:
        slow = facts.answers_s is not None and facts.answers_s >= _SLOW_ANSWERS_S
        more = f", its first answers {format_seconds(facts.answers_s)} more" if facts.answers_s and slow else ""
        lines = [Content(f"It took {format_seconds(facts.ready_s)} to be ready before ({facts.timed_by}){more}.")]
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
