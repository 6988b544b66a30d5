"""A finding or a proposal in full: what, why, what to do, and what that would give."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from tuner.advice.model import Advice
from tuner.findings import Severity
from tuner.text import clip, fitted, plain, width
from tuner.ui.remedies import Case, Entry, Next, Outlook, Remedy
from tuner.ui.widgets.findings_list import sign_of
from tuner.ui.widgets.set_in import set_in
from tuner.ui.wording import flag_value, signed

_DIM, _HEAD = "$foreground 60%", "bold $primary"
_SOFT = "$foreground 70%"
#: Cells of sign or rank and origin before an entry's words.
_HEAD_CELLS = 8
#: Cells for a name before its two values, where there is room and where there is not.
_WIDE, _LABEL_CELLS, _LABEL_CELLS_NARROW = 70, 30, 22


class EntryText(Widget):
    """One entry of the Doctor screen in full."""

    entry: reactive[Entry | None] = reactive(None, layout=True)
    remedy: reactive[Remedy] = reactive(Remedy(), layout=True)

    def render(self) -> Content:
        """What, why, what to do, and what that would give."""
        return self._text(self.size.width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Lines are broken here, with what follows set in: the height comes from the same text."""
        return self._text(width).get_height({}, max(1, width))

    def _text(self, cells: int) -> Content:
        match self.entry:
            case Case():
                lines = _finding(self.entry, cells)
            case Next():
                return Content("\n").join(_proposal(self.entry, self.remedy, cells))
            case Outlook():
                lines = _outlook(self.entry, cells)
            case _:
                return Content.assemble(("Nothing found: no advice on this plan or this server.", _SOFT))
        return Content("\n").join([*lines, *_effect(self.remedy, cells)])


def entry_line(entry: Entry, cells: int, *, whole: bool = False) -> Content:
    """One entry in lines of ``cells``: on one line, or ``whole``."""
    match entry:
        case Case():
            sign, style = sign_of(entry.finding.severity)
            if entry.finding.severity is Severity.NOTE:
                # Its colour is that of the cursor.
                style = "bold"
            head, words, gain = ((f"{sign} ", style), (f"{entry.origin:<6}", "bold")), entry.finding.title, ""
        case Next():
            head, words, gain = ((f"{entry.rank:>2}", "bold"), ("      ", "")), entry.proposal.title, _gain(entry)
        case Outlook():
            sign, style = _outlook_sign(entry)
            words, gain = _outlook_words(entry.advice) if entry.advice is not None else entry.problem, ""
            head = (f"{sign} ", style), (f"{entry.after:<6}", "bold")
    if whole:
        text = Content.assemble(*head, plain(words), (f"  {gain}" if gain else "", _DIM))
        return set_in(text, cells, _HEAD_CELLS)
    room = cells - _HEAD_CELLS - (width(gain) + 2 if gain else 0)
    title = fitted(plain(words), room) if gain else clip(plain(words), room)
    return Content.assemble(*head, title, (f"  {gain}" if gain else "", _DIM))


def _gain(entry: Next) -> str:
    """The effect that says most, in few cells."""
    effects = {effect.name: effect for effect in entry.proposal.effects}
    for name, label in (("kv_tokens", "KV"), ("max_running_requests", "requests"), ("mamba_slots", "slots")):
        effect = effects.get(name)
        if effect is not None and effect.new > effect.old:
            return f"{effect.change} {label}"
    return ""


def _finding(case: Case, cells: int) -> list[Content]:
    finding = case.finding
    where = "in the plan on the Tune screen" if case.origin == "plan" else f"in {case.origin}"
    lines = [
        *_set_in(sign_of(finding.severity), finding.title, cells, style="bold"),
        Content.assemble((f"  {finding.id} · {finding.severity} · {where}", _DIM)),
    ]
    if finding.evidence:
        lines += [*_head("Evidence"), *_bullets(finding.evidence, cells)]
    if finding.remedy:
        lines += [*_head("Remedy"), *_set_in(("  ", ""), finding.remedy, cells)]
    return lines


def _proposal(entry: Next, remedy: Remedy, cells: int) -> list[Content]:
    proposal = entry.proposal
    need = " · meets the need" if proposal.meets_need else ""
    lines = [
        *_set_in((f"{entry.rank}.", "bold $success"), proposal.title, cells, style="bold"),
        Content.assemble((f"   {proposal.id} · {proposal.lever} · after {entry.after}{need}", _DIM)),
        *_effect(remedy, cells),
        *_head("Why"),
        *_set_in(("  ", ""), proposal.reason, cells),
        *_bullets(proposal.evidence, cells),
    ]
    price = [("gives up", proposal.gives_up), ("risk", proposal.risk)]
    told = [line for label, text in price if text for line in _set_in((f"  {label:<9}", _DIM), text, cells)]
    if told:
        lines += [*_head("Price"), *told]
    if not remedy.changes:
        lines += [Content(""), Content.assemble(("✓ ", "bold $success"), "It is on the Tune screen. R starts it.")]
    return lines


def _outlook(outlook: Outlook, cells: int) -> list[Content]:
    if outlook.advice is None:
        return _set_in(("?", "bold $warning"), outlook.problem, cells)
    advice = outlook.advice
    lines = [
        *_set_in(_outlook_sign(outlook), _outlook_words(advice), cells, style="bold"),
        Content.assemble((f"  {_count(advice)} after {outlook.after}{', best first' * bool(advice.proposals)}", _DIM)),
    ]
    if advice.derived_need is not None:
        lines += [*_head("What it must be good for"), *_set_in(("  ", ""), advice.derived_need.sentence, cells)]
    if advice.missing:
        lines += [*_head("What is missing"), *_bullets(advice.missing, cells)]
    if advice.notes:
        lines += [*_head("What no flag changes"), *_bullets(advice.notes, cells)]
    return lines


def _outlook_sign(outlook: Outlook) -> tuple[str, str]:
    if outlook.advice is None:
        return "?", "bold $warning"
    return ("✓", "bold $success") if outlook.advice.enough else ("→", "bold")


def _outlook_words(advice: Advice) -> str:
    """The sentence without the first proposal, whose own line comes next."""
    if not advice.proposals:
        return advice.sentence
    title = advice.proposals[0].title
    if advice.sentence == f"{title}.":
        return "No need is stated, no work was seen yet: see below."
    return advice.sentence.replace(f": {title[:1].lower()}{title[1:]}.", ": see below.")


def _count(advice: Advice) -> str:
    number = len(advice.proposals)
    return f"{number or 'no'} proposal{'s' if number > 1 else ''}"


def _head(words: str) -> list[Content]:
    return [Content(""), Content.assemble((words, _HEAD))]


def _bullets(lines: Sequence[str], cells: int) -> list[Content]:
    return [part for line in lines for part in _set_in(("  ·", _SOFT), line, cells, style="$foreground 80%")]


def _set_in(sign: tuple[str, str], text: str, cells: int, *, style: str = "") -> list[Content]:
    """A paragraph behind a sign, its further lines under the first."""
    mark, colour = sign
    indent = width(mark) + 1 if mark.strip() else width(mark)
    return [set_in(Content.assemble((mark.ljust(indent), colour), (plain(text), style)), cells, indent)]


def _effect(remedy: Remedy, cells: int) -> list[Content]:
    if not remedy.changes and not remedy.problem:
        return []
    lines = _head("What that would give")
    label_cells = _LABEL_CELLS if cells >= _WIDE else _LABEL_CELLS_NARROW
    lines += [
        Content.assemble(f"  {name}{' ' * max(1, label_cells - width(name))}",
                         (f"{flag_value(name, old):>12} → ", "$foreground 60%"),
                         (flag_value(name, new), "bold $warning"))
        for name, old, new in remedy.changes
    ]  # fmt: skip
    if remedy.problem:
        return [*lines, *_set_in(("  ✗", "bold $error"), remedy.problem, cells, style="$error")]
    now, then = remedy.now, remedy.then
    if then is None:
        return lines
    rows: list[tuple[str, float | None, float, int]] = [
        ("KV tokens", now.kv_tokens if now else None, then.kv_tokens, 0)
    ]
    if then.bytes_per_slot:
        rows.append(("State slots", now.mamba_slots if now else None, then.mamba_slots, 0))
    rows += [
        ("Requests", now.max_running_requests if now else None, then.max_running_requests, 0),
        ("Longest input, tokens", now.longest_input_tokens if now else None, then.longest_input_tokens, 0),
        ("Free at ready, GiB", now.ready_free_gib if now else None, then.ready_free_gib, 2),
    ]
    for label, was, will, digits in rows:
        before = f"{was:,.{digits}f}" if was is not None else "–"
        change = signed(will, was, digits)
        lines.append(
            Content.assemble(f"  {label:<{label_cells}}", (f"{before:>12} → ", "$foreground 60%"),
                             (f"{will:>10,.{digits}f}", "bold"),
                             (f"{change:>11}", _DIM if change in ("", "=") else "bold $warning"))
        )  # fmt: skip
    if not then.fits:
        lines.append(Content.assemble(("  ✗ ", "bold $error"), ("A start like this will not come up.", "$error")))
    elif remedy.lost:
        lines += _set_in(("  ! ", "bold $warning"), remedy.lost, cells)
    return lines
